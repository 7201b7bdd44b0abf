// Command retain publishes retained messages, one topic each, and waits for every acknowledgement: each is one key of
// the hub's metadata.
//
//	retain ADDRESS COUNT
package main

import (
	"fmt"
	"os"
	"strconv"

	"edgehub/test/harness/mqttc"
)

// window is how many messages are unacknowledged at a time.
const window = 500

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "retain:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("usage: retain ADDRESS COUNT")
	}
	n, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	conn, ack, err := mqttc.Dial(args[0], mqttc.Connect{Version: 5, ClientID: "retain", Clean: true})
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	if ack.Code != 0 {
		return fmt.Errorf("connect: %v", ack)
	}
	defer conn.Abort()
	for sent, acked := 0, 0; acked < n; {
		for ; sent < n && sent-acked < window; sent++ {
			p := mqttc.Packet{Kind: mqttc.PUBLISH, Topic: fmt.Sprintf("kept/%06d", sent), Payload: []byte("x"), QoS: 1, Retain: true, ID: uint16(sent%window + 1)}
			if err := conn.Send(p); err != nil {
				return err
			}
		}
		p, err := conn.Next(mqttc.Patience)
		if err != nil {
			return err
		}
		if p.Kind != mqttc.PUBACK || p.Code != 0 {
			return fmt.Errorf("message %d: %v", acked, p)
		}
		acked++
	}
	return nil
}
