package main

import (
	"go/ast"
	"go/types"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/singlechecker"
)

func main() { singlechecker.Main(newAnalyzer(&ours, module)) }

func newAnalyzer(r *rules, module string) *analysis.Analyzer {
	return &analysis.Analyzer{
		Name: "stepvet",
		Doc:  "seams and step functions: no clock, chance, file or goroutine where a test could not replay it",
		Run: func(pass *analysis.Pass) (any, error) {
			dir := strings.TrimPrefix(pass.Pkg.Path(), module)
			c := &checker{pass: pass, rules: r, dir: dir, used: map[int]bool{}}
			c.run()
			return nil, nil
		},
	}
}

type checker struct {
	pass  *analysis.Pass
	rules *rules
	dir   string // of the package in the module
	file  string // the one that is looked at, with dir
	used  map[int]bool
}

func (c *checker) run() {
	seam, diskFree := slices.Contains(c.rules.seamPackages, c.dir), slices.Contains(c.rules.diskFree, c.dir)
	present := map[string]bool{}
	for _, f := range c.pass.Files {
		name := filepath.Base(c.pass.Fset.Position(f.FileStart).Filename)
		if strings.HasSuffix(name, "_test.go") || !strings.HasSuffix(name, ".go") {
			continue
		}
		c.file = c.dir + "/" + name
		present[c.file] = true
		step := slices.Contains(c.rules.stepFiles, c.file) || slices.Contains(c.rules.stepFiles, c.dir+"/")
		ast.Inspect(f, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok {
				if seam {
					c.checkSeam(id)
				}
				if diskFree && !slices.Contains(c.rules.diskLayer, c.file) {
					c.checkDisk(id)
				}
				if step {
					c.checkPureUse(id)
				}
			}
			if step {
				c.checkPureSyntax(n)
			}
			return true
		})
		if step {
			c.checkMapOrder(f)
		}
	}
	c.checkTables(present)
}

// checkTables reports lines of the tables that speak of nothing.
func (c *checker) checkTables(present map[string]bool) {
	if len(c.pass.Files) == 0 || len(present) == 0 {
		return // a package of tests
	}
	at := c.pass.Files[0].Package
	for i, e := range c.rules.exceptions {
		if strings.HasPrefix(e.file, c.dir+"/") && !strings.Contains(e.file[len(c.dir)+1:], "/") && !c.used[i] {
			c.pass.Reportf(at, "rules.go allows %s in %s, which does not use it", e.name, e.file)
		}
	}
	for _, f := range c.rules.stepFiles {
		if filepath.Dir(f) == c.dir && !strings.HasSuffix(f, "/") && !present[f] {
			c.pass.Reportf(at, "rules.go names %s, which does not exist", f)
		}
	}
}

func (c *checker) allowed(name string) bool {
	for i, e := range c.rules.exceptions {
		if e.file == c.file && e.name == name {
			c.used[i] = true
			return true
		}
	}
	return false
}

// funcOf is the function that an identifier uses, with its package's path; ""
// if it uses something else.
func (c *checker) funcOf(id *ast.Ident) (pkg, name string, method bool) {
	fn, ok := c.pass.TypesInfo.Uses[id].(*types.Func)
	if !ok || fn.Pkg() == nil {
		return "", "", false
	}
	return fn.Pkg().Path(), fn.Name(), fn.Signature().Recv() != nil
}

var clockFuncs = strings.Fields("Now Since Until After AfterFunc Sleep Tick NewTimer NewTicker")

// sourceFuncs make a random source, and so are what a seam is filled with.
var sourceFuncs = strings.Fields("New NewSource NewPCG NewChaCha8 NewZipf")

func isRand(pkg string) bool { return pkg == "math/rand" || pkg == "math/rand/v2" }

func (c *checker) checkSeam(id *ast.Ident) {
	pkg, name, method := c.funcOf(id)
	if method {
		return
	}
	switch {
	case pkg == "time" && slices.Contains(clockFuncs, name):
		if !c.allowed("time." + name) {
			c.pass.Reportf(id.Pos(), "time.%s past the seam: take a clock.Clock", name)
		}
	case isRand(pkg) && !slices.Contains(sourceFuncs, name):
		if !c.allowed("rand." + name) {
			c.pass.Reportf(id.Pos(), "global rand.%s past the seam: take a random source", name)
		}
	}
}

func (c *checker) checkDisk(id *ast.Ident) {
	pkg, name, method := c.funcOf(id)
	if (pkg == "os" || pkg == "syscall" || strings.HasPrefix(pkg, "golang.org/x/sys/")) && !method && !c.allowed(pkg+"."+name) {
		c.pass.Reportf(id.Pos(), "%s.%s past the disk layer: take vfs.FS", pkg, name)
	}
}
