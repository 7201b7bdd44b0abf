package mqtt

import (
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"edgehub/test/harness/hubtest"
	"edgehub/test/harness/mqttc"
)

// members connects n clients and subscribes each to the filter.
func members(t *testing.T, addr, filter string, n int, options byte, connect func(id string) mqttc.Connect) []*hubtest.Client {
	t.Helper()
	var list []*hubtest.Client
	for i := range n {
		c := hubtest.Dial(t, addr, connect(fmt.Sprintf("m%d", i)))
		c.Sub(filter, options)
		list = append(list, c)
	}
	return list
}

func clean5(id string) mqttc.Connect { return clean(id, 5) }
func kept5(id string) mqttc.Connect  { return kept(id, 5) }

// TestShareRoundRobin: each message goes to one member, in turn, and to every group and plain subscription.
func TestShareRoundRobin(t *testing.T) {
	addr := hubtest.Start(t, nil).Addr()
	for _, version := range []byte{4, 5} {
		for qos := range byte(3) {
			t.Run(fmt.Sprintf("v%d qos%d", version, qos), func(t *testing.T) {
				connect := func(id string) mqttc.Connect { return clean(id, version) }
				list := members(t, addr, "$share/g/s/+", 3, qos, connect)
				other := hubtest.Dial(t, addr, clean("other", version))
				other.Sub("$share/h/s/+", qos)
				plain := hubtest.Dial(t, addr, clean("plain", version))
				plain.Sub("s/#", qos)
				pub := hubtest.Dial(t, addr, clean("pub", version))
				for i := range 9 {
					text := strconv.Itoa(i)
					pub.Pub("s/1", text, qos)
					plain.Want("s/1", text, qos)
					other.Want("s/1", text, qos)
					list[i%3].Want("s/1", text, qos)
				}
				for _, c := range append(list, other, plain) {
					c.WantNothing()
					c.Bye()
				}
			})
		}
	}
}

// TestShareSendsNoRetained: a shared subscription is not sent what was retained before it.
func TestShareSendsNoRetained(t *testing.T) {
	addr := hubtest.Start(t, nil).Addr()
	pub := hubtest.Dial(t, addr, clean("pub", 5))
	pub.PubPacket(mqttc.Packet{Topic: "s/1", Payload: []byte("old"), QoS: 1, Retain: true})
	c := hubtest.Dial(t, addr, clean("c", 5))
	c.Sub("$share/g/s/+", 1)
	c.WantNothing()
	pub.Pub("s/1", "new", 1)
	c.Want("s/1", "new", 1)
}

// TestShareRedispatch: what a member had not acknowledged when it went is another's. One that only unsubscribes may
// complete what was begun [MQTT-3.10.4-3]: another gets that when the connection ends without.
func TestShareRedispatch(t *testing.T) {
	for _, away := range []string{"lost", "unsubscribed"} {
		t.Run(away, func(t *testing.T) {
			addr := hubtest.Start(t, nil).Addr()
			list := members(t, addr, "$share/g/s/+", 2, 1, clean5)
			pub := hubtest.Dial(t, addr, clean("pub", 5))
			for i := range 10 {
				pub.Pub("s/1", strconv.Itoa(i), 1)
			}
			got := map[string]bool{}
			for range 5 {
				p, err := list[1].Receive(mqttc.Patience)
				if err != nil {
					t.Fatal(err)
				}
				got[string(p.Payload)] = true
			}
			if away == "lost" {
				list[0].Abort()
			} else {
				if _, err := list[0].Unsubscribe("$share/g/s/+"); err != nil {
					t.Fatal(err)
				}
				p, err := list[0].Receive(mqttc.Patience) // acknowledges the first of the five
				if err != nil {
					t.Fatal(err)
				}
				got[string(p.Payload)] = true
				if err := list[0].Ping(); err != nil {
					t.Fatal(err)
				}
				list[1].WantNothing()
				list[0].Abort()
			}
			for range 10 - len(got) {
				p, err := list[1].Receive(mqttc.Patience)
				if err != nil {
					t.Fatalf("the messages of the member that went did not come: %v; had %d", err, len(got))
				}
				if p.Dup {
					t.Error("a message that this client never got has DUP set")
				}
				got[string(p.Payload)] = true
			}
			if len(got) != 10 {
				t.Errorf("got %d of 10", len(got))
			}
			list[1].WantNothing()
		})
	}
}

// TestShareKeepsItsInbox: a group whose members are all away loses nothing, and whoever comes first gets it, also
// after a kill.
func TestShareKeepsItsInbox(t *testing.T) {
	h := hubtest.Start(t, nil)
	list := members(t, h.Addr(), "$share/g/s/+", 2, 1, kept5)
	pub := hubtest.Dial(t, h.Addr(), clean("pub", 5))
	pub.Pub("s/1", "live", 1)
	list[0].Want("s/1", "live", 1)
	list[0].Bye()
	list[1].Bye()
	pub.Pub("s/1", "a", 1)
	pub.Pub("s/1", "b", 1)
	pub.Pub("s/1", "zero", 0)
	pub.WantNothing() // it has been committed
	c := hubtest.Dial(t, h.Addr(), kept5("m1"))
	c.Want("s/1", "a", 1)
	c.Want("s/1", "b", 1)
	c.WantNothing()
	c.Bye()
	pub.Pub("s/1", "c", 1)
	hubtest.Restart(t, h)
	pub = hubtest.Dial(t, h.Addr(), clean("pub", 5))
	pub.Pub("s/1", "d", 1)
	c = hubtest.Dial(t, h.Addr(), kept5("m0"))
	for want := range []string{"c", "d"} {
		for {
			p, err := c.Receive(mqttc.Patience)
			if err != nil {
				t.Fatalf("%d of 2 came after the kill: %v", want, err)
			}
			// What was acknowledged just before the kill may come again at QoS 1.
			if text := string(p.Payload); text == "c" && want == 0 || text == "d" && want == 1 {
				break
			} else if text != "live" && text != "a" && text != "b" {
				t.Fatalf("got %q", text)
			}
		}
	}
	if _, err := c.Unsubscribe("$share/g/s/+"); err != nil {
		t.Fatal(err)
	}
	pub.Pub("s/1", "e", 1)
	c.WantNothing()
	c.Bye()
	c = hubtest.Dial(t, h.Addr(), kept5("m1")) // is still a member
	c.Want("s/1", "e", 1)
}

// TestShareEndsWithItsLastSession: a group without sessions has no inbox.
func TestShareEndsWithItsLastSession(t *testing.T) {
	addr := hubtest.Start(t, nil).Addr()
	c := hubtest.Dial(t, addr, clean5("m"))
	c.Sub("$share/g/s/+", 1)
	c.Bye()
	pub := hubtest.Dial(t, addr, clean5("pub"))
	pub.Pub("s/1", "nobody", 1)
	c = hubtest.Dial(t, addr, clean5("m"))
	c.Sub("$share/g/s/+", 1)
	c.WantNothing()
	pub.Pub("s/1", "somebody", 1)
	c.Want("s/1", "somebody", 1)
}

// TestShareQoS2StaysWithItsMember: a QoS 2 message belongs to the session that it was sent to [MQTT-4.8.2-4]: that
// gets it again, also after a kill, and nobody else does.
func TestShareQoS2StaysWithItsMember(t *testing.T) {
	h := hubtest.Start(t, nil)
	list := members(t, h.Addr(), "$share/g/s/+", 2, 2, kept5)
	pub := hubtest.Dial(t, h.Addr(), clean("pub", 5))
	pub.Pub("s/1", "first", 2)
	pub.Pub("s/1", "second", 2)
	p := list[0].WantPacket(mqttc.PUBLISH)
	if string(p.Payload) != "first" || p.QoS != 2 {
		t.Fatalf("got %v %q", p, p.Payload)
	}
	list[1].Want("s/1", "second", 2)
	list[0].Abort()
	list[1].WantNothing()
	hubtest.Restart(t, h)
	c1 := hubtest.Dial(t, h.Addr(), kept5("m1"))
	wantNoMessage(t, c1)
	c0 := hubtest.Dial(t, h.Addr(), kept5("m0"))
	again := c0.Want("s/1", "first", 2)
	if !again.Dup || again.ID != p.ID {
		t.Errorf("sent again as %v, first as %v", again, p)
	}
	wantNoMessage(t, c0)
	wantNoMessage(t, c1)
	hubtest.Restart(t, h)
	wantNoMessage(t, hubtest.Dial(t, h.Addr(), kept5("m1")))
	wantNoMessage(t, hubtest.Dial(t, h.Addr(), kept5("m0")))
}

// wantNoMessage is WantNothing, except that the hub may ask again for the end of a QoS 2 exchange: a PUBCOMP that the
// group had not noted yet when the hub was killed.
func wantNoMessage(t *testing.T, c *hubtest.Client) {
	t.Helper()
	c.Send(mqttc.Packet{Kind: mqttc.PINGREQ})
	for {
		p, err := c.Next(mqttc.Patience)
		switch {
		case err == nil && p.Kind == mqttc.PINGRESP:
			return
		case err == nil && p.Kind == mqttc.PUBREL:
			c.Send(mqttc.Packet{Kind: mqttc.PUBCOMP, ID: p.ID})
		default:
			t.Fatalf("want no message, got %v %.60q, %v", p, p.Payload, err)
		}
	}
}

// TestShareQoS2EndsWithItsSession: the session that a QoS 2 message was sent to ends, and nobody else gets it
// [MQTT-4.8.2-5].
func TestShareQoS2EndsWithItsSession(t *testing.T) {
	h := hubtest.Start(t, nil)
	addr := h.Addr()
	list := members(t, addr, "$share/g/s/+", 2, 2, clean5)
	pub := hubtest.Dial(t, addr, clean5("pub"))
	pub.Pub("s/1", "first", 2)
	list[0].WantPacket(mqttc.PUBLISH)
	list[0].Abort()
	hubtest.Eventually(t, mqttc.Patience, "the hub knows that the member is gone", func() bool {
		st, err := h.Status()
		return err == nil && st.Sessions == 2
	})
	pub.Pub("s/1", "second", 2)
	pub.Pub("s/1", "third", 2)
	list[1].Want("s/1", "second", 2)
	list[1].Want("s/1", "third", 2)
	list[1].WantNothing()
}

// TestShareRefusedIsDone: a message that a member refuses with a reason code goes to nobody else [MQTT-4.8.2-6].
func TestShareRefusedIsDone(t *testing.T) {
	addr := hubtest.Start(t, nil).Addr()
	list := members(t, addr, "$share/g/s/+", 2, 1, clean5)
	pub := hubtest.Dial(t, addr, clean5("pub"))
	pub.Pub("s/1", "bad", 1)
	p := list[0].WantPacket(mqttc.PUBLISH)
	list[0].Send(mqttc.Packet{Kind: mqttc.PUBACK, ID: p.ID, Code: 0x83})
	list[0].WantNothing()
	list[0].Abort()
	list[1].WantNothing()
}

// TestShareSkipsMembersWithoutRoom: a member whose window is full is passed over, and when all are full the group
// waits in the log.
func TestShareSkipsMembersWithoutRoom(t *testing.T) {
	addr := hubtest.Start(t, nil).Addr()
	small := func(id string) mqttc.Connect {
		o := clean5(id)
		o.Props = mqttc.Props{{ID: mqttc.PropReceiveMaximum, Num: 2}}
		return o
	}
	list := members(t, addr, "$share/g/s/+", 1, 1, small)
	big := hubtest.Dial(t, addr, small("big"))
	big.Sub("$share/g/s/+", 1)
	pub := hubtest.Dial(t, addr, clean5("pub"))
	for i := range 20 {
		pub.Pub("s/1", strconv.Itoa(i), 1)
	}
	list[0].WantPacket(mqttc.PUBLISH) // and nothing acknowledged
	list[0].WantPacket(mqttc.PUBLISH)
	for i := range 18 {
		if _, err := big.Receive(mqttc.Patience); err != nil {
			t.Fatalf("the member with room got %d: %v", i, err)
		}
	}
	list[0].WantNothing()
	big.WantNothing()
}

// TestShareUnderChurn: members come and go on all loops while messages flow; each message is received at least once by
// the members together, and none that was acknowledged comes again.
func TestShareUnderChurn(t *testing.T) {
	addr := hubtest.Start(t, nil).Addr()
	count := hubtest.Scale(t, "HUB_SHARE_MESSAGES", 100_000, 5000, 1000)
	seen := make([]atomic.Int32, count)
	var left atomic.Int64
	left.Store(int64(count))
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for i := range 8 {
		id := fmt.Sprintf("m%d", i)
		first := hubtest.Dial(t, addr, kept5(id))
		first.Sub("$share/g/s/+", 1)
		wg.Add(1)
		go func() {
			defer wg.Done()
			churn(t, addr, id, first.Conn, i%2 == 0, seen, &left, stop)
		}()
	}
	pub := hubtest.Dial(t, addr, clean5("pub"))
	for i := range count {
		pub.Pub(fmt.Sprintf("s/%d", i%7), strconv.Itoa(i), 1)
	}
	hubtest.Eventually(t, 4*mqttc.Patience, "every message received", func() bool { return left.Load() == 0 })
	close(stop)
	wg.Wait()
}

// churn is one member: it receives and, when it may, drops its connection now and then.
func churn(t *testing.T, addr, id string, c *mqttc.Conn, drops bool, seen []atomic.Int32, left *atomic.Int64, stop chan struct{}) {
	for n := 1; ; n++ {
		select {
		case <-stop:
			c.Abort()
			return
		default:
		}
		if drops && n%97 == 0 {
			c.Abort()
			var err error
			if c, _, err = mqttc.Dial(addr, kept5(id)); err != nil {
				t.Error(err)
				return
			}
		}
		p, err := c.Next(100 * time.Millisecond)
		if err != nil || p.Kind != mqttc.PUBLISH {
			continue
		}
		if i, err := strconv.Atoi(string(p.Payload)); err == nil && seen[i].Add(1) == 1 {
			left.Add(-1)
		}
		_ = c.Ack(mqttc.PUBACK, p.ID) // a failure shows at the next read
	}
}

// TestShareExpiredIsNotRedispatched: a message that expires while an absent member had it is given to nobody.
func TestShareExpiredIsNotRedispatched(t *testing.T) {
	addr := hubtest.Start(t, nil).Addr()
	list := members(t, addr, "$share/g/s/+", 2, 1, clean5)
	pub := hubtest.Dial(t, addr, clean5("pub"))
	short := mqttc.Props{{ID: mqttc.PropMessageExpiry, Num: 1}}
	pub.PubPacket(mqttc.Packet{Topic: "s/1", Payload: []byte("short"), QoS: 1, Props: short})
	pub.Pub("s/1", "other", 1)
	pub.Pub("s/1", "long", 1)
	list[0].WantPacket(mqttc.PUBLISH)
	list[0].WantPacket(mqttc.PUBLISH)
	list[1].Want("s/1", "other", 1)
	<-time.After(1500 * time.Millisecond)
	list[0].Abort()
	list[1].Want("s/1", "long", 1)
	list[1].WantNothing()
}
