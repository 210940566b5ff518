package controller

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"strings"
	"testing"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// Every command that Decide knows can travel, with all of its fields: a value in each
// of them comes back.
func TestCommandsTravel(t *testing.T) {
	for _, name := range decided(t) {
		typ, ok := commandTypes[name]
		if !ok {
			t.Errorf("%s is decided and not in commandTypes: it cannot be forwarded", name)
			continue
		}
		v := reflect.New(typ).Elem()
		fill(t, name, v, new(int))
		cmd := v.Interface().(Command)
		msgs, err := encodeCommands([]Command{cmd})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		wire, err := json.Marshal(msgs)
		if err != nil {
			t.Fatal(err)
		}
		var read []commandMessage
		if err := json.Unmarshal(wire, &read); err != nil {
			t.Fatal(err)
		}
		back, err := decodeCommands(read)
		if err != nil || !reflect.DeepEqual(back[0], cmd) {
			t.Errorf("%s: sent\n%+v\nreceived\n%+v, %v", name, cmd, back, err)
		}
	}
}

// decided are the types in the cases of Decide.
func decided(t *testing.T) []string {
	f, err := parser.ParseFile(token.NewFileSet(), "decide.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Name.Name != "Decide" {
			continue
		}
		ast.Inspect(fn, func(n ast.Node) bool {
			if c, ok := n.(*ast.CaseClause); ok {
				for _, e := range c.List {
					names = append(names, e.(*ast.Ident).Name)
				}
			}
			return true
		})
	}
	if len(names) < 20 {
		t.Fatalf("found %v only", names)
	}
	return names
}

// fill gives every field a value of its own.
func fill(t *testing.T, where string, v reflect.Value, n *int) {
	*n++
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(int64(*n % 100))
	case reflect.Uint8:
		v.SetUint(uint64(*n % 100))
	case reflect.Float64:
		v.SetFloat(float64(*n) + 0.5)
	case reflect.String:
		v.SetString(fmt.Sprint("text", *n))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(t, where, v.Elem(), n)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			fill(t, where, v.Index(i), n)
		}
	case reflect.Array:
		for i := range v.Len() {
			fill(t, where, v.Index(i), n)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(t, where, key, n)
		fill(t, where, value, n)
		v.SetMapIndex(key, value)
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Type().Field(i)
			if !f.IsExported() && !f.Anonymous {
				t.Errorf("%s: field %s of %s is not exported and would be lost", where, f.Name, v.Type())
				continue
			}
			fill(t, where+"."+f.Name, v.Field(i), n)
		}
	default:
		t.Errorf("%s: a %s cannot travel", where, v.Kind())
	}
}

// Nothing and empty are two things: a config that is set to "" is not deleted.
func TestEmptyTravels(t *testing.T) {
	empty := ""
	cmd := alterConfigs{AlterConfigs: AlterConfigs{Ops: []ConfigOp{{Name: "a", Value: &empty}, {Name: "b"}}}}
	msgs, err := encodeCommands([]Command{cmd, reassign{Reassign: Reassign{Replicas: []int32{}}}})
	if err != nil {
		t.Fatal(err)
	}
	back, err := decodeCommands(msgs)
	if err != nil || !reflect.DeepEqual(back[0], cmd) || back[1].(reassign).Replicas == nil {
		t.Errorf("%+v, %v", back, err)
	}
}

// What a node of another version says and this one does not know is refused.
func TestUnknownMessages(t *testing.T) {
	for _, m := range []commandMessage{{"burnDown", nil}, {"deleteTopicByID", json.RawMessage(`{"New":1}`)}, {"deleteTopicByID", json.RawMessage(`{`)}} {
		if _, err := decodeCommands([]commandMessage{m}); !errors.Is(err, ErrInvalidRequest) {
			t.Errorf("%+v: %v", m, err)
		}
	}
	if _, err := decodeCommands(make([]commandMessage, maxBatchCommands+1)); !errors.Is(err, ErrInvalidRequest) {
		t.Errorf("too many commands: %v", err)
	}
}

// Every sentinel of errors.go is known by name on the other side, and by its own
// name only.
func TestErrorsTravel(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), "errors.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	ast.Inspect(f, func(node ast.Node) bool {
		if v, ok := node.(*ast.ValueSpec); ok && strings.HasPrefix(v.Names[0].Name, "Err") {
			n++
			if sentinels[v.Names[0].Name] == nil {
				t.Errorf("%s is not in sentinels", v.Names[0].Name)
			}
		}
		return true
	})
	if n < 25 {
		t.Fatalf("found %d errors only", n)
	}
	for name, s := range sentinels {
		sent := fmt.Errorf("topic a: %w: of all things", s)
		wire, err := json.Marshal(encodeError(sent))
		if err != nil {
			t.Fatal(err)
		}
		var m errorMessage
		if err := json.Unmarshal(wire, &m); err != nil {
			t.Fatal(err)
		}
		got := decodeError(&m)
		for other, o := range sentinels {
			if errors.Is(got, o) != errors.Is(sent, o) {
				t.Errorf("%s is %s: %v before and %v after", name, other, errors.Is(sent, o), errors.Is(got, o))
			}
		}
		if got.Error() != sent.Error() {
			t.Errorf("%q became %q", sent, got)
		}
	}
	if encodeError(nil) != nil || decodeError(nil) != nil {
		t.Error("no error became one")
	}
}

// Changes travel as they are stored.
func TestOutcomesTravel(t *testing.T) {
	c := testCodec(t)
	id := testID(3)
	changes := []Change{
		setProducerIDs{7}, deleteTopic{id}, setAttachment{ID: id, Value: "", Revision: 12},
		putState{id, 1, &metadata.MirrorPartition{Mirror: "m", State: metadata.StateMirroring, StateEpoch: 4}},
	}
	groups, err := c.groups(changes)
	if err != nil {
		t.Fatal(err)
	}
	items := []outcome{{changes: changes, groups: groups}, {err: ErrUnknownTopic}}
	wire, err := json.Marshal(encodeOutcomes(items))
	if err != nil {
		t.Fatal(err)
	}
	var msgs []outcomeMessage
	if err := json.Unmarshal(wire, &msgs); err != nil {
		t.Fatal(err)
	}
	got, err := c.decodeOutcomes(msgs, 2, 12)
	if err != nil || !reflect.DeepEqual(got[0].changes, changes) || !errors.Is(got[1].err, ErrUnknownTopic) {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := c.decodeOutcomes(msgs, 3, 12); err == nil {
		t.Error("two outcomes of three commands were taken")
	}
}
