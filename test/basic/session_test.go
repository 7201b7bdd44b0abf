package basic

import (
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"edgehub/test/harness/hublog"
	"edgehub/test/harness/hubtest"
	"edgehub/test/harness/mqttc"
)

func TestSessions(t *testing.T) {
	addr := serve(t)
	versions(t, func(t *testing.T, version byte) {
		id := fmt.Sprintf("s%d", version)
		pub := hubtest.Dial(t, addr, clean("pub", version))
		c := hubtest.Dial(t, addr, kept(id, version))
		if c.Connack.SessionPresent {
			t.Error("a session from nowhere")
		}
		c.Sub("s/#", 2)
		c.Bye()
		pub.Pub("s/1", "zero", 0) // may be lost: the receiver is absent
		pub.Pub("s/1", "one", 1)
		pub.Pub("s/1", "two", 2)
		c = hubtest.Dial(t, addr, kept(id, version))
		if !c.Connack.SessionPresent {
			t.Fatal("the session is gone")
		}
		c.Want("s/1", "one", 1)
		c.Want("s/1", "two", 2)
		c.WantNothing()
		pub.Pub("s/1", "live", 1)
		c.Want("s/1", "live", 1)
		c.Bye()
		pub.Pub("s/1", "forgotten", 1)
		c = hubtest.Dial(t, addr, clean(id, version)) // ends the old one
		if c.Connack.SessionPresent {
			t.Error("a clean session has a past")
		}
		c.WantNothing()
		c.Sub("s/#", 1)
		c.Bye()
		c = hubtest.Dial(t, addr, kept(id, version))
		if c.Connack.SessionPresent {
			t.Error("a clean session has a future")
		}
		pub.Pub("s/1", "nobody", 1)
		c.WantNothing()
		c.Bye()
	})
}

func TestSessionExpiry(t *testing.T) {
	addr := serve(t)
	short := mqttc.Connect{Version: 5, ClientID: "short", SessionExpiry: 1}
	hubtest.Dial(t, addr, short).Bye()
	c := hubtest.Dial(t, addr, short)
	if !c.Connack.SessionPresent {
		t.Error("a session of one second is gone at once")
	}
	c.Bye()
	<-time.After(2500 * time.Millisecond)
	c = hubtest.Dial(t, addr, short)
	if c.Connack.SessionPresent {
		t.Error("a session of one second lives after two and a half")
	}
	// Clean Start = 0 without an expiry ends with the connection.
	none := mqttc.Connect{Version: 5, ClientID: "none"}
	hubtest.Dial(t, addr, none).Bye()
	if hubtest.Dial(t, addr, none).Connack.SessionPresent {
		t.Error("a session without an expiry outlives its connection")
	}
}

func TestSessionSurvivesKill(t *testing.T) {
	h := serveHub(t)
	versions(t, func(t *testing.T, version byte) {
		id := fmt.Sprintf("k%d", version)
		c := hubtest.Dial(t, h.Addr(), kept(id, version))
		c.Sub("k/#", 1)
		c.Sub("other/#", 2)
		if _, err := c.Unsubscribe("other/#"); err != nil {
			t.Fatal(err)
		}
		hubtest.Restart(t, h) // connected
		pub := hubtest.Dial(t, h.Addr(), clean("pub", version))
		pub.Pub("k/1", "before", 1)
		pub.Pub("other/1", "no", 1)
		hubtest.Restart(t, h) // absent, with something waiting
		c = hubtest.Dial(t, h.Addr(), kept(id, version))
		if !c.Connack.SessionPresent {
			t.Fatal("the session is gone")
		}
		p := c.WantPacket(mqttc.PUBLISH)
		if string(p.Payload) != "before" {
			t.Fatalf("got %v", p)
		}
		hubtest.Restart(t, h) // with an unacknowledged message
		c = hubtest.Dial(t, h.Addr(), kept(id, version))
		c.Want("k/1", "before", 1)
		c.WantNothing()
		gone := hubtest.Dial(t, h.Addr(), clean(id, version))
		gone.Bye()
		hubtest.Restart(t, h)
		if hubtest.Dial(t, h.Addr(), kept(id, version)).Connack.SessionPresent {
			t.Error("a session that was ended is back after a kill")
		}
	})
}

func TestTakeover(t *testing.T) {
	addr := serve(t)
	for _, old := range []byte{4, 5} {
		for _, young := range []byte{4, 5} {
			id := fmt.Sprintf("t%d%d", old, young)
			first := hubtest.Dial(t, addr, kept(id, old))
			first.Sub("take/"+id, 1)
			second := hubtest.Dial(t, addr, kept(id, young))
			if !second.Connack.SessionPresent {
				t.Errorf("%s: the session did not move", id)
			}
			got := first.WantClose(mqttc.Patience)
			told := len(got) == 1 && got[0].Kind == mqttc.DISCONNECT && got[0].Code == 0x8E
			if old == 5 && !told && !onMosquitto() || old == 4 && len(got) != 0 {
				t.Errorf("%s: the old connection was told %v", id, got)
			}
			second.Pub("take/"+id, "x", 1)
			second.Want("take/"+id, "x", 1)
			second.Bye()
		}
	}
}

// TestTakeoverStorm lets many connections fight for one session; the last
// one has it, and nothing that was acknowledged meanwhile is lost to it.
func TestTakeoverStorm(t *testing.T) {
	addr := serve(t)
	hubtest.Dial(t, addr, kept("storm", 4)).Sub("storm", 1)
	pub := hubtest.Dial(t, addr, clean("pub", 5))
	next := 0
	for i := range 30 {
		pub.Pub("storm", fmt.Sprint(i), 1)
		c := hubtest.Dial(t, addr, kept("storm", byte(4+i%2)))
		if i%3 > 0 {
			continue
		}
		for next <= i {
			p := c.WantPacket(mqttc.PUBLISH)
			if string(p.Payload) != fmt.Sprint(next) {
				t.Fatalf("got %s, want %d", p.Payload, next)
			}
			if err := c.Conn.Ack(mqttc.PUBACK, p.ID); err != nil {
				t.Fatal(err)
			}
			next++
		}
		c.WantNothing()
	}
}

func TestKeepAlive(t *testing.T) {
	addr := serve(t)
	versions(t, func(t *testing.T, version byte) {
		watch := hubtest.Dial(t, addr, clean("watch", version))
		watch.Sub("will/#", 1)
		o := withWill(clean("silent", version), "will/silent", "x", 1, false)
		o.KeepAlive = 1
		active := clean("active", version)
		active.KeepAlive = 1
		silent, busy := hubtest.Dial(t, addr, o), hubtest.Dial(t, addr, active)
		begin, closed := time.Now(), make(chan struct{})
		var got []mqttc.Packet
		var err error
		go func() {
			defer close(closed)
			got, err = silent.AwaitClose(mqttc.Patience)
		}()
		tick := time.NewTicker(500 * time.Millisecond)
		defer tick.Stop()
		for open := true; open; {
			select {
			case <-closed:
				open = false
			case <-tick.C:
				if err := busy.Ping(); err != nil {
					t.Fatalf("a client that keeps alive: %v", err)
				}
			}
		}
		if took := time.Since(begin); err != nil || took < 1400*time.Millisecond || took > 4*time.Second && !onMosquitto() {
			t.Errorf("a silent client was closed after %v, %v", took, err)
		}
		if version == 5 && !onMosquitto() && (len(got) != 1 || got[0].Code != 0x8D) {
			t.Errorf("a silent client was told %v", got)
		}
		watch.Want("will/silent", "x", 1)
		if err := busy.Ping(); err != nil {
			t.Errorf("a client that keeps alive: %v", err)
		}
	})
}

func TestStopOnSIGTERM(t *testing.T) {
	h := serveHub(t)
	five := hubtest.Dial(t, h.Addr(), withWill(kept("five", 5), "will/five", "no", 1, true))
	four := hubtest.Dial(t, h.Addr(), kept("four", 4))
	five.Sub("stop/#", 1)
	pub := hubtest.Dial(t, h.Addr(), clean("pub", 4))
	const n = 1000
	for i := range n {
		pub.Send(mqttc.Packet{Kind: mqttc.PUBLISH, Topic: "stop/x", QoS: 1, ID: uint16(i + 1), Payload: fmt.Append(nil, i)})
	}
	pub.WantPacket(mqttc.PUBACK) // in the middle of it
	begin := time.Now()
	code, err := h.Stop(20 * time.Second)
	if err != nil || code != 0 {
		t.Fatalf("exit code %d, %v", code, err)
	}
	t.Logf("stopped in %v", time.Since(begin).Round(time.Millisecond))
	acked := 1
	for _, p := range pub.WantClose(mqttc.Patience) {
		if p.Kind == mqttc.PUBACK {
			acked++
		}
	}
	got := five.WantClose(mqttc.Patience)
	if last := got[len(got)-1:]; len(last) != 1 || last[0].Kind != mqttc.DISCONNECT || last[0].Code != 0x8B {
		t.Errorf("the MQTT 5 client was told %v", last)
	}
	if got := four.WantClose(mqttc.Patience); len(got) != 0 {
		t.Errorf("the MQTT 3.1.1 client was told %v", got)
	}
	log := hublog.Collect{}
	if err := hublog.ReadFiles(h.Config.DataDir, "main", nil, log.Add); err != nil {
		t.Fatal(err)
	}
	if log.Len() < acked {
		t.Errorf("%d records for %d acknowledged messages", log.Len(), acked)
	}
	if err := h.Process().Signal(syscall.SIGTERM); err == nil {
		t.Error("it runs still")
	}
	if err := h.Start(); err != nil {
		t.Fatal(err)
	}
	five = hubtest.Dial(t, h.Addr(), kept("five", 5))
	if !five.Connack.SessionPresent {
		t.Error("the session is gone after a clean stop")
	}
	for i := range acked {
		p, err := five.Receive(mqttc.Patience)
		if err != nil || string(p.Payload) != fmt.Sprint(i) {
			t.Fatalf("message %d: %v %s, %v", i, p, p.Payload, err)
		}
	}
}

// TestSlowSubscriber does not read; others and the hub must not care, and it
// gets everything once it reads, because its session references the log.
func TestSlowSubscriber(t *testing.T) {
	const n = 3000
	addr := serve(t)
	slow := hubtest.Dial(t, addr, kept("slow", 4))
	slow.Sub("slow", 1)
	fast := hubtest.Dial(t, addr, clean("fast", 4))
	fast.Sub("slow", 1)
	pub := hubtest.Dial(t, addr, clean("pub", 4))
	body := make([]byte, 4000)
	for i := range n {
		copy(body, fmt.Sprintf("%06d", i))
		pub.PubPacket(mqttc.Packet{Topic: "slow", QoS: 1, Payload: body})
		if p, err := fast.Receive(mqttc.Patience); err != nil || string(p.Payload[:6]) != fmt.Sprintf("%06d", i) {
			t.Fatalf("the fast subscriber: %v, %v", p, err)
		}
	}
	for i := range n {
		if p, err := slow.Receive(mqttc.Patience); err != nil || string(p.Payload[:6]) != fmt.Sprintf("%06d", i) {
			t.Fatalf("the slow subscriber at %d: %v, %v", i, p, err)
		}
	}
	if err := errors.Join(slow.Ping(), fast.Ping()); err != nil {
		t.Error(err)
	}
}

// TestReturnAfterAbort breaks a connection off, publishes, and comes back at
// once, so that the hub learns of the three in any order.
func TestReturnAfterAbort(t *testing.T) {
	addr := serve(t)
	versions(t, func(t *testing.T, version byte) {
		for qos := byte(1); qos <= 2; qos++ {
			id := fmt.Sprintf("abort%d%d", version, qos)
			c := hubtest.Dial(t, addr, kept(id, version))
			c.Sub("abort/"+id, 2)
			pub := hubtest.Dial(t, addr, clean("pub", version))
			for i := range hubtest.Scale(t, "HUB_ABORTS", 1000, 150, 30) {
				payload := fmt.Sprint(i)
				c.Abort()
				pub.Pub("abort/"+id, payload, qos)
				c = hubtest.Dial(t, addr, kept(id, version))
				if !c.Connack.SessionPresent {
					t.Fatal("the session is gone")
				}
				c.Want("abort/"+id, payload, qos)
				c.WantNothing()
			}
		}
	})
}
