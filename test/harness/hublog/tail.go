package hublog

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"edgehub/test/harness"
)

// tailLine is a line of `hubctl tail`, as the contract has it.
type tailLine struct {
	Stream        string    `json:"stream"`
	Partition     int       `json:"partition"`
	Lane          int       `json:"lane"`
	Offset        int64     `json:"offset"`
	Time          time.Time `json:"time"`
	Topic         string    `json:"topic"`
	Payload       *string   `json:"payload"`
	PayloadBase64 []byte    `json:"payload_base64"`
	QoS           byte      `json:"qos"`
	Retain        bool      `json:"retain"`
}

// ReadTail calls fn with every record of a stream as `hubctl tail --from
// earliest --no-follow` prints them.
func ReadTail(ctx context.Context, h *harness.Hub, stream string, fn func(*Record) error) error {
	cmd := h.CtlCommand(ctx, "tail", stream, "--from", "earliest", "--no-follow", "-o", "json")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	perr := parseTail(out, stream, fn)
	if perr != nil {
		_ = cmd.Process.Kill() // nobody reads on; perr is what matters
	}
	if err := cmd.Wait(); err != nil && perr == nil {
		return fmt.Errorf("hublog: hubctl tail: %w: %s", err, stderr.Bytes())
	}
	return perr
}

func parseTail(in io.Reader, stream string, fn func(*Record) error) error {
	dec := json.NewDecoder(bufio.NewReaderSize(in, 1<<20))
	for {
		var l tailLine
		err := dec.Decode(&l)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("hublog: hubctl tail: %w", err)
		}
		if l.Stream != stream {
			return fmt.Errorf("hublog: hubctl tail %s printed a record of %q", stream, l.Stream)
		}
		r := Record{Partition: fmt.Sprintf("%d-%d", l.Partition, l.Lane), Offset: l.Offset, TimeMs: l.Time.UnixMilli(),
			Topic: l.Topic, Payload: l.PayloadBase64, QoS: l.QoS, Retain: l.Retain}
		if l.Payload != nil {
			r.Payload = []byte(*l.Payload)
		}
		if err := fn(&r); err != nil {
			return err
		}
	}
}
