package jsnode

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"edgehub/test/harness/hublog"
)

func TestMain(m *testing.M) {
	ServeIfChild()
	os.Exit(m.Run())
}

func connect(t *testing.T, n *Node) *Remote {
	t.Helper()
	r, err := Connect(n.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// put stores a message as the uplink would.
func put(ctx context.Context, r *Remote, rec *hublog.Record) error {
	m := nats.NewMsg("edge.t." + rec.Topic)
	m.Data = rec.Payload
	for k, v := range map[string]string{
		"Hub-Topic": rec.Topic, "Hub-Id": "t", "Hub-Instance": "i", "Hub-Stream": "s", "Hub-Partition": rec.Partition,
		"Hub-Offset": fmt.Sprint(rec.Offset), "Hub-QoS": fmt.Sprint(rec.QoS), "Hub-Retain": fmt.Sprint(rec.Retain),
		"Hub-Time": time.UnixMilli(rec.TimeMs).UTC().Format(time.RFC3339Nano),
		// The test stores some records twice on purpose: no Nats-Msg-Id below
		// may meet the server's own window.
		nats.MsgIdHdr: fmt.Sprintf("i/s/%s/1/%d", rec.Partition, rec.Offset),
	} {
		m.Header.Set(k, v)
	}
	_, err := r.js.PublishMsg(ctx, m)
	return err
}

func records(n int) []hublog.Record {
	out := make([]hublog.Record, n)
	for i := range out {
		out[i] = hublog.Record{Partition: "0-0", Offset: int64(i), TimeMs: 1_000_000 + int64(i), Topic: "a", Payload: fmt.Append(nil, i), QoS: byte(i % 3)}
	}
	return out
}

func TestNodeSurvivesKillAndFreeze(t *testing.T) {
	n, err := NewNode()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Remove() })
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	r := connect(t, n)
	if _, err := r.js.CreateStream(ctx, jetstream.StreamConfig{Name: "R", Subjects: []string{"edge.>"}}); err != nil {
		t.Fatal(err)
	}
	recs := records(300)
	for i := range recs[:200] {
		if err := put(ctx, r, &recs[i]); err != nil {
			t.Fatal(err)
		}
	}
	n.Kill()
	if err := n.Start(); err != nil {
		t.Fatal(err)
	}
	r = connect(t, n)
	if err := n.Freeze(); err != nil {
		t.Fatal(err)
	}
	frozen, stop := context.WithTimeout(ctx, 200*time.Millisecond)
	if err := put(frozen, r, &recs[200]); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a frozen server answers: %v", err)
	}
	stop()
	if err := n.Thaw(); err != nil {
		t.Fatal(err)
	}
	for i := range recs[200:] { // 200 is stored by now; its id makes the repetition harmless
		if err := put(ctx, r, &recs[200+i]); err != nil {
			t.Fatal(err)
		}
	}
	if c, err := Compare(ctx, r, "R", "s", hublog.Collect{"0-0": recs}); err != nil || !c.Exact() || c.Stored != 300 {
		t.Errorf("%v, %v", c, err)
	}
}

func TestCompareVerdicts(t *testing.T) {
	addr, dir := "127.0.0.1:-1", t.TempDir() // -1: any free port, for a test that never restarts the server
	e, err := StartEmbedded(addr, dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Stop)
	r, err := Connect(e.s.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	for i, tt := range []struct {
		name  string
		store []int
		other func(*hublog.Record)
		want  Comparison
	}{
		{"exact", []int{0, 1, 2, 3}, nil, Comparison{}},
		{"missing", []int{0, 1, 3}, nil, Comparison{Missing: 1}},
		{"duplicated", []int{0, 1, 1, 2, 3}, nil, Comparison{Duplicated: 1}},
		{"out of order", []int{0, 2, 1, 3}, nil, Comparison{OutOfOrder: 1}},
		{"foreign", []int{0, 1, 2, 3, 4}, nil, Comparison{Foreign: 1}},
		{"different", []int{0, 1, 2, 3}, func(r *hublog.Record) { r.Payload = []byte("other") }, Comparison{Different: 4}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			name := fmt.Sprintf("R%d", i)
			if _, err := r.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{"edge.t.>"},
				Duplicates: time.Millisecond * 100, MaxMsgs: 100}); err != nil {
				t.Fatal(err)
			}
			recs := records(5)
			for stored, k := range tt.store {
				rec := recs[k]
				if tt.other != nil {
					tt.other(&rec)
				}
				// A repeated id is stored once the window has passed.
				for have := uint64(0); have <= uint64(stored); {
					if err := put(t.Context(), r, &rec); err != nil {
						t.Fatal(err)
					}
					if have, err = r.Count(t.Context(), name); err != nil {
						t.Fatal(err)
					}
				}
			}
			c, err := Compare(t.Context(), r, name, "s", hublog.Collect{"0-0": recs[:4]})
			if err != nil {
				t.Fatal(err)
			}
			got, want := *c, tt.want
			got.Examples, want.Logged, want.Stored = nil, 4, len(tt.store)
			if fmt.Sprint(got) != fmt.Sprint(want) || c.Exact() != (tt.name == "exact") {
				t.Errorf("%v", c)
			}
			if err := r.js.DeleteStream(t.Context(), name); err != nil {
				t.Fatal(err)
			}
		})
	}
}
