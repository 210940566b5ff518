package controller

import "testing"

// TestFull fills the store to its quota with history. Commands fail, and say why;
// the controller stays in office; after the housekeeper's next round, or a restart,
// there is room again.
func TestFull(t *testing.T) {
	dir := t.TempDir()
	o := testOptions(t, dir)
	o.QuotaBytes = 8 << 20
	c := open(t, o)
	register(t, c, 1)
	create(t, c, "before", 1)
	junk := string(make([]byte, 1<<20))
	fill := func() (full bool) {
		t.Helper()
		for range 100 { // etcd counts the file, which grows every 100 ms
			if _, err := c.etcd.client.Put(t.Context(), "junk", junk); err != nil {
				return true
			}
		}
		return false
	}
	if !fill() {
		t.Fatal("the quota was never reached")
	}
	r := c.CreateTopics(t.Context(), []CreateTopic{{Name: "refused"}}, false)
	if r[0].Err == nil || c.Image().Topic("refused") != nil {
		t.Errorf("a full store answers %+v", r[0])
	}
	t.Log(r[0].Err)
	if !c.Leading() {
		t.Error("a full store cost the office")
	}
	if err := houseRound(t.Context(), c.etcd, c.o); err != nil {
		t.Error(err)
	}
	create(t, c, "between", 1)
	fill()
	closeNow(t, c)

	o = testOptions(t, dir)
	o.QuotaBytes = 8 << 20
	c = open(t, o)
	create(t, c, "after", 1)
	if c.Image().Topic("before") == nil || c.Image().Topic("refused") != nil {
		t.Errorf("it shows\n%s", show(c.Image()))
	}
	if alarms, err := c.etcd.client.AlarmList(t.Context()); err != nil || len(alarms.Alarms) != 0 {
		t.Errorf("%v, %v", alarms, err)
	}
}
