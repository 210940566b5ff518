package main

import (
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strings"
)

// impure are packages whose functions, variables and (for sync) types have no
// place in a decision. Types of net, say an IP address to parse, are values.
var impure = strings.Fields("os net math/rand math/rand/v2 crypto/rand sync sync/atomic syscall os/signal os/exec")

// textFuncs of net take addresses apart and open nothing.
var textFuncs = strings.Fields("SplitHostPort JoinHostPort ParseIP ParseCIDR")

func (c *checker) checkPureUse(id *ast.Ident) {
	obj := c.pass.TypesInfo.Uses[id]
	if obj == nil || obj.Pkg() == nil {
		return
	}
	pkg, name := obj.Pkg().Path(), obj.Name()
	bad := false
	switch obj.(type) {
	case *types.Func:
		_, _, method := c.funcOf(id)
		bad = slices.Contains(impure, pkg) && !(pkg == "net" && slices.Contains(textFuncs, name)) ||
			pkg == "time" && !method && slices.Contains(clockFuncs, name)
	case *types.Var:
		bad = slices.Contains(impure, pkg)
	case *types.TypeName:
		bad = strings.HasPrefix(pkg, "sync") || strings.Contains(pkg, "rand")
	}
	if bad && !c.allowed(obj.Pkg().Name()+"."+name) {
		c.pass.Reportf(id.Pos(), "%s.%s in a step function", obj.Pkg().Name(), name)
	}
}

func (c *checker) checkPureSyntax(n ast.Node) {
	report := func(what string) {
		if !c.allowed(what) {
			c.pass.Reportf(n.Pos(), "%s in a step function", what)
		}
	}
	switch n := n.(type) {
	case *ast.GoStmt:
		report("go")
	case *ast.SelectStmt:
		report("select")
	case *ast.SendStmt:
		report("channel send")
	case *ast.ChanType:
		report("channel")
	case *ast.UnaryExpr:
		if n.Op == token.ARROW {
			report("channel receive")
		}
	case *ast.RangeStmt:
		if _, ok := c.pass.TypesInfo.TypeOf(n.X).Underlying().(*types.Chan); ok {
			report("channel receive")
		}
	case *ast.CallExpr:
		if id, ok := n.Fun.(*ast.Ident); ok && id.Name == "close" {
			if _, ok := c.pass.TypesInfo.Uses[id].(*types.Builtin); ok {
				report("close of a channel")
			}
		}
	}
}
