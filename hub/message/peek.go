package message

import (
	"encoding/binary"

	"edgehub/storage/seglog"
)

// Peek returns what a scan of the log needs to know of a record without decoding it whole: the QoS, whether the publisher set
// RETAIN, and who published it, as far as that is kept. What cannot be read has its default.
func Peek(h seglog.Headers) (qos byte, retain bool, o Origin) {
	qos = defaultQoS
	for key, value := range h.All() {
		if len(key) != 2 || key[0] != 0 {
			continue
		}
		switch string(key) {
		case keyFlags:
			if len(value) == 1 {
				qos, retain = value[0]&3, value[0]&flagRetain != 0
			}
		case keyQoS2:
			if len(value) >= 10 {
				o = Origin{QoS2Seq: binary.BigEndian.Uint64(value), PacketID: binary.BigEndian.Uint16(value[8:]), Client: value[10:], NoLocal: true}
			}
		case keyPublisher:
			o = Origin{Client: some(value), NoLocal: true}
		}
	}
	return qos, retain, o
}
