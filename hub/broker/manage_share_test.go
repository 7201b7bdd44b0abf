package broker

import (
	"reflect"
	"testing"
)

// groupsNow is SharedSubscriptions, whose mail needs the loops to run.
func (r *rig) groupsNow() []GroupInfo {
	got := make(chan []GroupInfo, 1)
	go func() { got <- r.b.SharedSubscriptions() }()
	for {
		select {
		case list := <-got:
			return list
		default:
			for i := range r.loops {
				r.step(i)
			}
		}
	}
}

func TestGroupsAreDescribed(t *testing.T) {
	r := newRig(t, oneStream, 2)
	if list := r.groupsNow(); len(list) != 0 {
		t.Fatalf("%v", list)
	}
	const key = "$share/g/t"
	a, b := r.connect(0, persistent("a")), r.connect(1, persistent("b"))
	a.subscribe(1, key)
	b.subscribe(2, key)
	from := r.connect(0, ConnectRequest{ClientID: "p"})
	r.publishN(from, "t", 3)
	want := []GroupInfo{{Key: key, Sessions: 2, Members: []GroupMember{{"a", 1}, {"b", 2}}, InFlight: 3}}
	if got := r.groupsNow(); !reflect.DeepEqual(got, want) {
		t.Fatalf("got %+v, want %+v", got, want)
	}
	a.drop()
	b.drop()
	r.settle()
	r.publishN(from, "t", 5)
	got := r.groupsNow()
	if len(got) != 1 || got[0].Sessions != 2 || got[0].Members != nil || got[0].Inbox < 5 {
		t.Fatalf("with nobody connected: %+v", got)
	}
	r.kill()
	if got = r.groupsNow(); len(got) != 1 || got[0].Sessions != 2 || got[0].Inbox < 5 {
		t.Fatalf("after a kill: %+v", got)
	}
}
