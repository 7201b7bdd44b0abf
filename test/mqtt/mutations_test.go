package mqtt

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"edgehub/test/harness"
	"edgehub/test/harness/hubtest"
	"edgehub/test/harness/mqttc"
)

// originals are packets of every kind that a client sends, for mutating.
func originals(version byte) [][]byte {
	props := mqttc.Props{{ID: mqttc.PropUser, Str: "k", Pair: "v"}, {ID: mqttc.PropMessageExpiry, Num: 60}, {ID: mqttc.PropContentType, Str: "text/plain"},
		{ID: mqttc.PropResponseTopic, Str: "answer/here"}, {ID: mqttc.PropCorrelation, Str: "\x01\x02"}, {ID: mqttc.PropTopicAlias, Num: 3}}
	packets := []mqttc.Packet{
		{Kind: mqttc.PUBLISH, Topic: "noise/a", Payload: []byte("payload"), Props: props},
		{Kind: mqttc.PUBLISH, QoS: 1, ID: 5, Topic: "noise/a/b", Payload: []byte("payload"), Retain: true},
		{Kind: mqttc.PUBLISH, QoS: 2, ID: 6, Topic: "noise/c", Payload: make([]byte, 300), Props: props},
		{Kind: mqttc.PUBLISH, QoS: 1, ID: 9, Topic: "$SYS/x"},
		{Kind: mqttc.PUBACK, ID: 1}, {Kind: mqttc.PUBREC, ID: 2}, {Kind: mqttc.PUBREL, ID: 6}, {Kind: mqttc.PUBCOMP, ID: 3, Code: 0x92},
		{Kind: mqttc.SUBSCRIBE, ID: 10, Filters: []mqttc.Filter{{Name: "noise/#", Options: 1}, {Name: "+/a", Options: 2}, {Name: "$share/g/noise/+", Options: 1}, {Name: "$SYS/#"}}},
		{Kind: mqttc.SUBSCRIBE, ID: 11, Filters: []mqttc.Filter{{Name: "noise/a", Options: 0x2D}}, Props: mqttc.Props{{ID: mqttc.PropSubscriptionID, Num: 300}}},
		{Kind: mqttc.UNSUBSCRIBE, ID: 12, Filters: []mqttc.Filter{{Name: "noise/#"}, {Name: "$share/g/noise/+"}}},
		{Kind: mqttc.PINGREQ},
		{Kind: mqttc.AUTH, Code: 0x19, Props: mqttc.Props{{ID: 0x15, Str: "m"}}},
		{Kind: mqttc.DISCONNECT, Code: 4, Props: mqttc.Props{{ID: mqttc.PropSessionExpiry, Num: 1}}},
	}
	var list [][]byte
	for i := range packets {
		list = append(list, packets[i].Append(nil, version))
	}
	o := kept("again", version)
	return append(list, o.Append(nil))
}

// mutate changes b in one to three places; now and then it leaves it alone, so that sessions get further.
func mutate(rng *rand.Rand, b []byte) []byte {
	b = append([]byte(nil), b...)
	for range rng.IntN(4) {
		switch at := rng.IntN(len(b)); rng.IntN(6) {
		case 0:
			b[at] ^= 1 << rng.IntN(8)
		case 1:
			b[at] = byte(rng.Uint32())
		case 2:
			b[at] = [...]byte{0, 1, 0x7f, 0x80, 0xff}[rng.IntN(5)]
		case 3: // one more byte, with the length to it if that is one byte long
			b = append(b[:at], append([]byte{byte(rng.Uint32())}, b[at:]...)...)
			if len(b) > 2 && b[1] < 0x7f {
				b[1]++
			}
		case 4: // the end is missing
			b = b[:at+1]
			if len(b) > 1 {
				b[1] = byte(min(len(b)-2, 127))
			}
		case 5:
			other := rng.IntN(len(b))
			b[at], b[other] = b[other], b[at]
		}
	}
	return b
}

// TestMutatedPackets throws mutated packets at a hub. It does not fall, holds no memory for them, closes what it must,
// and a client that behaves loses nothing.
func TestMutatedPackets(t *testing.T) {
	count := hubtest.Scale(t, "HUB_MUTATIONS", 1_000_000, 60_000, 10_000)
	h := hubtest.Start(t, nil)
	sub := hubtest.Dial(t, h.Addr(), clean("calm-sub", 5))
	sub.Sub("calm", 1)
	pub := hubtest.Dial(t, h.Addr(), clean("calm-pub", 5))
	calm := func(n int) {
		text := fmt.Sprint(n)
		pub.Pub("calm", text, 1)
		sub.Want("calm", text, 1)
	}
	calm(0)
	before, err := h.RSS()
	if err != nil {
		t.Fatal(err)
	}
	const senders = 4
	var wg sync.WaitGroup
	for i := range senders {
		wg.Add(1)
		go func() {
			defer wg.Done()
			throw(t, h.Addr(), rand.New(rand.NewPCG(7, uint64(i))), count/senders, i)
		}()
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	for n := 1; ; n++ {
		calm(n)
		select {
		case <-done:
		case <-time.After(20 * time.Millisecond):
			continue
		}
		break
	}
	hubtest.Eventually(t, mqttc.Patience, "only the two calm clients are connected", func() bool {
		st, err := h.Status()
		return err == nil && st.Connections == 2
	})
	calm(-1)
	after, err := h.RSS()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d packets; resident memory %d KiB before, %d KiB after", count, before>>10, after>>10)
	if os.Getenv(harness.RaceEnv) == "" && after > before+64<<20 {
		t.Errorf("the hub holds %d MiB more", (after-before)>>20)
	}
}

// throw sends n mutated packets over as many connections as it takes.
func throw(t *testing.T, addr string, rng *rand.Rand, n, who int) {
	sent := 0
	for sent < n {
		version := byte(3 + rng.IntN(3))
		c, err := mqttc.Open(addr, version)
		if err != nil {
			t.Error(err)
			return
		}
		drained := make(chan struct{})
		go func() {
			defer close(drained)
			_, _ = io.Copy(io.Discard, c.Net()) // whatever the hub answers
		}()
		o := mqttc.Connect{Version: version, ClientID: fmt.Sprintf("noise-%d-%d", who, rng.IntN(5)), Clean: rng.IntN(2) == 0, KeepAlive: 5}
		hello := o.Append(nil)
		if rng.IntN(10) == 0 {
			hello = mutate(rng, hello)
		}
		err = c.SendRaw(hello)
		kinds := originals(version)
		for i := 0; err == nil && i < 40 && sent < n; i++ {
			err = c.SendRaw(mutate(rng, kinds[rng.IntN(len(kinds))]))
			sent++
		}
		c.Abort()
		<-drained
	}
}
