package tidy

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
	"testing"
)

const module = "github.com/lockstep-kafka/lockstep/"

// layers reads the fenced block "layers" of ARCHITECTURE.md: rows from top to
// bottom, names on one row do not know each other.
func layers(t *testing.T, doc string) map[string]int {
	t.Helper()
	m := regexp.MustCompile("(?s)```layers\n(.*?)```").FindStringSubmatch(doc)
	if m == nil {
		t.Fatal("ARCHITECTURE.md has no block marked layers")
	}
	rank := map[string]int{}
	for i, line := range strings.Split(strings.TrimSpace(m[1]), "\n") {
		for name := range strings.SplitSeq(line, "|") {
			rank[strings.TrimSpace(name)] = i
		}
	}
	return rank
}

// outside are packages that stand beside the layers: they may import what the
// architecture says there, and nothing of the layers imports them, except the
// binary.
var outside = regexp.MustCompile(`^(perf|fixtures(/.*)?|internal/(sim|tidy(/.*)?|verify)|plugins/(serve|plugintest|examples)(/.*)?)$`)

type goPackage struct {
	ImportPath string
	Imports    []string
}

func packages(t *testing.T) []goPackage {
	t.Helper()
	cmd := exec.Command("go", "list", "-tags", "interop", "-json=ImportPath,Imports", "./...")
	cmd.Dir = "../.."
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []goPackage
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		if err := d.Decode(&p); err == io.EOF {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

// Imports point down the layers block only.
func TestLayers(t *testing.T) {
	doc := read(t, "ARCHITECTURE.md")
	rank := layers(t, doc)
	for _, p := range packages(t) {
		name := strings.TrimPrefix(p.ImportPath, module)
		from, known := rank[name]
		if !known {
			if !outside.MatchString(name) {
				t.Errorf("%s is neither in the layers block nor outside of it", name)
			}
			continue
		}
		for _, imp := range p.Imports {
			dep, ours := strings.CutPrefix(imp, module)
			if !ours {
				continue
			}
			to, known := rank[dep]
			switch {
			case !known && name != "cmd/lockstep":
				t.Errorf("%s imports %s, which stands outside the layers", name, dep)
			case known && to <= from:
				t.Errorf("%s imports %s, which is not below it", name, dep)
			}
		}
	}
}

// The table of packages names each package once, and no package that is gone.
func TestPackageTable(t *testing.T) {
	doc := read(t, "ARCHITECTURE.md")
	listed := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z0-9/-]+)` \\|").FindAllStringSubmatch(doc, -1) {
		if listed[m[1]] {
			t.Errorf("%s is in the table twice", m[1])
		}
		listed[m[1]] = true
	}
	for _, p := range packages(t) {
		name := strings.TrimPrefix(p.ImportPath, module)
		if !listed[name] {
			t.Errorf("%s is missing from the package table of ARCHITECTURE.md", name)
		}
		delete(listed, name)
	}
	for name := range listed {
		t.Errorf("ARCHITECTURE.md lists %s, which does not exist", name)
	}
}

// Files that ARCHITECTURE.md names exist.
func TestNamedFilesExist(t *testing.T) {
	doc := read(t, "ARCHITECTURE.md")
	for _, m := range regexp.MustCompile("`([a-z][a-z0-9_/]*\\.go)`").FindAllStringSubmatch(doc, -1) {
		if _, err := os.Stat(filepath.Join("../..", m[1])); err != nil {
			t.Errorf("ARCHITECTURE.md names %s: %v", m[1], err)
		}
	}
}

// The top level holds what was agreed and nothing else.
func TestTopLevel(t *testing.T) {
	want := strings.Fields("ARCHITECTURE.md LICENSE Makefile README.md cmd fixtures go.mod go.sum internal perf pipeline plugins segment")
	out, err := exec.Command("git", "-C", "../..", "ls-tree", "--name-only", "HEAD").Output()
	if err != nil {
		t.Skipf("not a git checkout: %v", err)
	}
	var got []string
	for _, f := range strings.Fields(string(out)) {
		if !strings.HasPrefix(f, ".") {
			got = append(got, f)
		}
	}
	sort.Strings(got)
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("top level is %v, want %v", got, want)
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("../..", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
