package load_test

import (
	"errors"
	"testing"
	"time"

	"edgehub/test/harness"
	"edgehub/test/harness/load"
	"edgehub/test/harness/mqttc"
	"edgehub/test/harness/netfault"
)

// The fleet and its checker against a broker that is not ours: what a
// subscriber receives stands for the log, while the publishers' connections
// are cut again and again.
func TestFleetSurvivesCuts(t *testing.T) {
	m, err := harness.StartMosquitto("")
	if errors.Is(err, harness.ErrNoMosquitto) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Remove() })
	proxy, err := netfault.Listen("127.0.0.1:0", m.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = proxy.Close() })
	sub, _, err := mqttc.Dial(m.Addr, mqttc.Connect{ClientID: "log", Clean: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sub.Abort)
	if _, err := sub.Subscribe(mqttc.Filter{Name: "load/#", Options: 0}); err != nil {
		t.Fatal(err)
	}
	f := load.New(load.Options{Addr: proxy.Addr(), Name: "f", Publishers: 12, Window: 16, Rate: 6000,
		QoS: func(p int) byte { return byte(1 + p/2%2) }})
	check := load.NewChecker(f)
	got := make(chan error, 1)
	go func() {
		for {
			p, err := sub.Receive(time.Hour)
			if err != nil || p.Topic == "load/end" {
				got <- err
				return
			}
			check.Add("0-0", 0, p.Topic, p.Payload)
		}
	}()
	f.Start()
	cut := time.NewTicker(150 * time.Millisecond)
	defer cut.Stop()
	for range 8 {
		<-cut.C
		proxy.Cut()
	}
	if err := f.Stop(20 * time.Second); err != nil {
		t.Fatal(err)
	}
	pub, _, err := mqttc.Dial(m.Addr, mqttc.Connect{ClientID: "end", Clean: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := pub.Publish(mqttc.Packet{Topic: "load/end", QoS: 1}); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	r := check.Report()
	t.Log(r.String())
	if !r.OK() || r.Checked != r.Acked || r.Acked != r.Published || r.Lost == 0 || r.Logged < 1000 {
		t.Error("the fleet's own account is wrong")
	}
}
