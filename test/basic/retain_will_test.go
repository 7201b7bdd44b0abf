package basic

import (
	"testing"
	"time"

	"edgehub/test/harness/hublog"
	"edgehub/test/harness/hubtest"
	"edgehub/test/harness/mqttc"
)

func retained(topic, payload string, qos byte) mqttc.Packet {
	return mqttc.Packet{Topic: topic, Payload: []byte(payload), QoS: qos, Retain: true}
}

func TestRetained(t *testing.T) {
	addr := serve(t)
	versions(t, func(t *testing.T, version byte) {
		live := hubtest.Dial(t, addr, clean("live", version))
		live.Sub("r/#", 2)
		pub := hubtest.Dial(t, addr, clean("pub", version))
		for qos := range byte(3) {
			pub.PubPacket(retained("r/a", "old", qos))
			pub.PubPacket(retained("r/a", "new", qos))
			for _, want := range []string{"old", "new"} {
				if p := live.Want("r/a", want, qos); p.Retain {
					t.Error("a live message carries the retain flag")
				}
			}
			late := hubtest.Dial(t, addr, clean("late", version))
			late.Sub("r/+", 2)
			if p := late.Want("r/a", "new", qos); !p.Retain {
				t.Error("a retained message comes without its flag")
			}
			late.Sub("r/+", 1) // again: sent again
			late.Want("r/a", "new", min(qos, 1))
			pub.PubPacket(retained("r/a", "", qos))
			live.Want("r/a", "", qos)
			late.Want("r/a", "", min(qos, 1))
			late.Bye()
			empty := hubtest.Dial(t, addr, clean("late", version))
			empty.Sub("r/#", 2)
			empty.WantNothing()
			empty.Bye()
		}
	})
}

func TestRetainedSurvivesKill(t *testing.T) {
	h := serveHub(t)
	pub := hubtest.Dial(t, h.Addr(), clean("pub", 5))
	p := retained("r/keep", "kept", 1)
	p.Props = mqttc.Props{{ID: mqttc.PropUser, Str: "k", Pair: "v"}}
	pub.PubPacket(p)
	pub.PubPacket(retained("r/gone", "x", 1))
	pub.PubPacket(retained("r/gone", "", 1))
	pub.PubPacket(retained("r/new", "1", 2))
	pub.PubPacket(retained("r/new", "2", 1))
	for range 2 {
		hubtest.Restart(t, h)
		sub := hubtest.Dial(t, h.Addr(), clean("sub", 5))
		sub.Sub("r/keep", 1)
		if got := sub.Want("r/keep", "kept", 1); !got.Retain || len(got.Props.All(mqttc.PropUser)) != 1 {
			t.Errorf("got %v", got)
		}
		sub.Sub("r/new", 1)
		sub.Want("r/new", "2", 1)
		sub.Sub("r/gone", 1)
		sub.WantNothing()
	}
}

func withWill(o mqttc.Connect, topic, payload string, qos byte, retain bool) mqttc.Connect {
	o.Will = &mqttc.Will{Topic: topic, Payload: []byte(payload), QoS: qos, Retain: retain}
	return o
}

func TestWill(t *testing.T) {
	addr := serve(t)
	versions(t, func(t *testing.T, version byte) {
		sub := hubtest.Dial(t, addr, clean("sub", version))
		sub.Sub("will/#", 2)
		for qos := range byte(3) {
			dying := hubtest.Dial(t, addr, withWill(clean("dying", version), "will/a", "lost", qos, false))
			dying.Abort()
			sub.Want("will/a", "lost", qos)
		}
		leaving := hubtest.Dial(t, addr, withWill(clean("leaving", version), "will/b", "lost", 1, false))
		leaving.Bye()
		sub.WantNothing()
		kept := hubtest.Dial(t, addr, withWill(clean("kept", version), "will/c", "retained", 1, true))
		kept.Abort()
		sub.Want("will/c", "retained", 1)
		late := hubtest.Dial(t, addr, clean("late", version))
		late.Sub("will/c", 1)
		if p := late.Want("will/c", "retained", 1); !p.Retain {
			t.Error("a retained will comes without its flag")
		}
		late.PubPacket(retained("will/c", "", 1))
	})
}

func TestWillOfMQTT5(t *testing.T) {
	addr := serve(t)
	sub := hubtest.Dial(t, addr, clean("sub", 5))
	sub.Sub("will/#", 1)
	// DISCONNECT with 0x04 asks for the will.
	c := hubtest.Dial(t, addr, withWill(clean("asks", 5), "will/asks", "x", 1, false))
	c.Send(mqttc.Packet{Kind: mqttc.DISCONNECT, Code: 4})
	sub.Want("will/asks", "x", 1)
	// A client that is back before the delay is over has not died.
	delayed := withWill(kept("back", 5), "will/back", "x", 1, false)
	delayed.Will.Props = mqttc.Props{{ID: mqttc.PropWillDelay, Num: 2}}
	hubtest.Dial(t, addr, delayed).Abort()
	sub.WantNothing()
	back := hubtest.Dial(t, addr, kept("back", 5))
	if !back.Connack.SessionPresent {
		t.Error("no session")
	}
	// One that stays away has.
	delayed.ClientID, delayed.Will.Topic = "away", "will/away"
	delayed.Will.Props = mqttc.Props{{ID: mqttc.PropWillDelay, Num: 1}, {ID: mqttc.PropContentType, Str: "c"}}
	begin := time.Now()
	hubtest.Dial(t, addr, delayed).Abort()
	p := sub.Want("will/away", "x", 1)
	if took := time.Since(begin); took < 900*time.Millisecond {
		t.Errorf("a will with a delay of 1 s came after %v", took)
	}
	if _, ok := p.Props.Get(mqttc.PropContentType); !ok {
		t.Errorf("got %v", p)
	}
}

// TestWillSurvivesKill kills the hub under a connected client with a will.
// Whoever was connected then has been cut off, and its will is due.
func TestWillSurvivesKill(t *testing.T) {
	versions(t, func(t *testing.T, version byte) {
		h := serveHub(t)
		watch := hubtest.Dial(t, h.Addr(), kept("watch", version))
		watch.Sub("will/#", 1)
		hubtest.Dial(t, h.Addr(), withWill(clean("victim", version), "will/victim", "killed", 1, true))
		left := hubtest.Dial(t, h.Addr(), withWill(clean("left", version), "will/left", "no", 1, true))
		left.Bye()
		hubtest.Restart(t, h)
		watch = hubtest.Dial(t, h.Addr(), kept("watch", version))
		watch.Want("will/victim", "killed", 1)
		watch.WantNothing()
		late := hubtest.Dial(t, h.Addr(), clean("late", version))
		late.Sub("will/#", 1)
		late.Want("will/victim", "killed", 1)
		hubtest.Restart(t, h)
		// Once is enough. The watcher may get the old record again after a
		// kill, as QoS 1 allows; the log tells whether there is a new one.
		late = hubtest.Dial(t, h.Addr(), clean("late", version))
		late.Sub("will/#", 1)
		late.Want("will/victim", "killed", 1)
		late.WantNothing()
		log := hublog.Collect{}
		if err := hublog.ReadFiles(h.Config.DataDir, "main", nil, log.Add); err != nil || log.Len() != 1 {
			t.Errorf("the log has %v, %v, want one will", log, err)
		}
	})
}
