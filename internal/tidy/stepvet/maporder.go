package main

import (
	"go/ast"
	"go/token"
	"go/types"
	"strings"
)

// checkMapOrder looks at every loop over a map in the file's functions. What it
// lets pass: loops whose statements give the same in any order (writing a map or
// deleting from it, counting, least and greatest, "is there one"), and loops
// that collect into a slice which the function sorts afterwards.
func (c *checker) checkMapOrder(f *ast.File) {
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Body == nil {
			continue
		}
		sorted := c.sortedIn(fn.Body)
		ast.Inspect(fn.Body, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.RangeStmt:
				if !c.overMap(n.X) {
					return true
				}
				o := orderCheck{c: c, sorted: sorted, from: n}
				if leak := o.block(n.Body.List); leak != nil && !c.allowed("range over a map in "+fn.Name.Name) {
					c.pass.Reportf(n.Pos(), "order of a map leaks from this loop (line %d): range over sorted keys",
						c.pass.Fset.Position(leak.Pos()).Line)
				}
			case *ast.CallExpr:
				if c.isFunc(n.Fun, "slices", "Collect", "AppendSeq") && len(n.Args) > 0 && c.overMap(n.Args[len(n.Args)-1]) && !c.sortedLater(fn.Body, n, sorted) && !c.allowed("range over a map in "+fn.Name.Name) {
					c.pass.Reportf(n.Pos(), "order of a map leaks into a slice: use slices.Sorted")
				}
			}
			return true
		})
	}
}

// overMap says whether ranging over x goes through a map.
func (c *checker) overMap(x ast.Expr) bool {
	if t := c.pass.TypesInfo.TypeOf(x); t != nil {
		if _, ok := t.Underlying().(*types.Map); ok {
			return true
		}
	}
	call, ok := x.(*ast.CallExpr)
	return ok && c.isFunc(call.Fun, "maps", "Keys", "Values", "All")
}

func (c *checker) isFunc(fun ast.Expr, pkg string, names ...string) bool {
	if x, ok := fun.(*ast.IndexExpr); ok {
		fun = x.X
	}
	sel, ok := fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	p, name, _ := c.funcOf(sel.Sel)
	if p != pkg {
		return false
	}
	for _, n := range names {
		if n == name || strings.HasSuffix(n, "*") && strings.HasPrefix(name, n[:len(n)-1]) {
			return true
		}
	}
	return false
}

// sortedIn lists what the function sorts, with the place where it does.
func (c *checker) sortedIn(body *ast.BlockStmt) map[types.Object]token.Pos {
	sorted := map[types.Object]token.Pos{}
	ast.Inspect(body, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok && len(call.Args) > 0 && (c.isFunc(call.Fun, "slices", "Sort*") || c.isFunc(call.Fun, "sort", "Slice*", "Sort", "Strings", "Ints")) {
			if obj := c.root(call.Args[0]); obj != nil {
				sorted[obj] = max(sorted[obj], call.Pos())
			}
		}
		return true
	})
	return sorted
}

// sortedLater says whether the slice that call makes gets a name that is sorted.
func (c *checker) sortedLater(body *ast.BlockStmt, call *ast.CallExpr, sorted map[types.Object]token.Pos) bool {
	found := false
	ast.Inspect(body, func(n ast.Node) bool {
		a, ok := n.(*ast.AssignStmt)
		if ok && len(a.Lhs) == 1 && len(a.Rhs) == 1 && a.Rhs[0] == ast.Expr(call) {
			if obj := c.root(a.Lhs[0]); obj != nil && sorted[obj] > call.Pos() {
				found = true
			}
		}
		return !found
	})
	return found
}

// root is the variable or field that an expression names.
func (c *checker) root(x ast.Expr) types.Object {
	switch x := x.(type) {
	case *ast.Ident:
		if o := c.pass.TypesInfo.Uses[x]; o != nil {
			return o
		}
		return c.pass.TypesInfo.Defs[x]
	case *ast.SelectorExpr:
		return c.pass.TypesInfo.Uses[x.Sel]
	case *ast.ParenExpr:
		return c.root(x.X)
	}
	return nil
}

// orderCheck looks for the first statement of a loop whose effect depends on
// the order of the rounds.
type orderCheck struct {
	c      *checker
	sorted map[types.Object]token.Pos
	from   *ast.RangeStmt
	depth  int // of loops inside this one, which a break leaves
}

func (o *orderCheck) block(list []ast.Stmt) ast.Node {
	for _, s := range list {
		if leak := o.stmt(s); leak != nil {
			return leak
		}
	}
	return nil
}

func (o *orderCheck) stmt(s ast.Stmt) ast.Node {
	switch s := s.(type) {
	case nil, *ast.EmptyStmt, *ast.DeclStmt, *ast.IncDecStmt:
		return nil
	case *ast.BranchStmt:
		if s.Label == nil && (s.Tok == token.CONTINUE || s.Tok == token.BREAK && o.depth > 0) {
			return nil
		}
	case *ast.BlockStmt:
		return o.block(s.List)
	case *ast.IfStmt:
		if leak := o.stmt(s.Init); leak != nil {
			return leak
		}
		if leak := o.block(s.Body.List); leak != nil {
			return leak
		}
		return o.stmt(s.Else)
	case *ast.RangeStmt:
		return o.inner(s.Body)
	case *ast.ForStmt:
		return o.inner(s.Body)
	case *ast.ReturnStmt:
		for _, r := range s.Results { // the same whichever round comes first
			if tv := o.c.pass.TypesInfo.Types[r]; tv.Value == nil && !tv.IsNil() {
				return s
			}
		}
		return nil
	case *ast.ExprStmt:
		if call, ok := s.X.(*ast.CallExpr); ok {
			if id, ok := call.Fun.(*ast.Ident); ok && (id.Name == "delete" || id.Name == "clear") {
				return nil
			}
		}
	case *ast.AssignStmt:
		return o.assign(s)
	}
	return s
}

func (o *orderCheck) inner(body *ast.BlockStmt) ast.Node {
	o.depth++
	defer func() { o.depth-- }()
	return o.block(body.List)
}

func (o *orderCheck) assign(a *ast.AssignStmt) ast.Node {
	switch a.Tok {
	case token.ADD_ASSIGN, token.SUB_ASSIGN, token.OR_ASSIGN, token.AND_ASSIGN, token.XOR_ASSIGN:
		if t, ok := o.c.pass.TypesInfo.TypeOf(a.Lhs[0]).Underlying().(*types.Basic); ok && t.Info()&types.IsInteger != 0 {
			return nil
		}
		return a
	case token.DEFINE:
		return nil
	}
	for i, l := range a.Lhs {
		if len(a.Lhs) != len(a.Rhs) || !o.unordered(l, a.Rhs[i]) {
			return a
		}
	}
	return nil
}

// unordered says that l = r gives the same in any order of the rounds.
func (o *orderCheck) unordered(l, r ast.Expr) bool {
	if id, ok := l.(*ast.Ident); ok {
		if id.Name == "_" {
			return true
		}
		if obj := o.c.root(l); obj != nil && obj.Pos() > o.from.Pos() && obj.Pos() < o.from.End() {
			return true // it lives in one round
		}
	}
	if x, ok := l.(*ast.IndexExpr); ok {
		_, isMap := o.c.pass.TypesInfo.TypeOf(x.X).Underlying().(*types.Map)
		return isMap
	}
	if sel, ok := l.(*ast.SelectorExpr); ok { // a field of this round's value
		if obj := o.c.root(sel.X); obj != nil && obj.Pos() > o.from.Pos() && obj.Pos() < o.from.End() {
			return true
		}
	}
	if tv := o.c.pass.TypesInfo.Types[r]; tv.Value != nil {
		return true // a constant: "there was one"
	}
	call, ok := r.(*ast.CallExpr)
	if !ok {
		return false
	}
	if id, ok := call.Fun.(*ast.Ident); ok {
		switch id.Name {
		case "min", "max":
			return true
		case "append":
			obj := o.c.root(l)
			return obj != nil && o.sorted[obj] > o.from.Pos()
		}
	}
	return false
}
