package packet

// RemainingMax is the greatest remaining length that the four bytes of a fixed header can say.
const RemainingMax = 268_435_455

// Frame looks for a whole packet at the start of b. It returns the packet's first byte, its body (the bytes after the fixed header, a
// part of b) and its size with the fixed header. While the packet is incomplete size is 0 and err is nil.
//
// max limits the size, as the Maximum Packet Size of MQTT 5 counts it; 0 or less means no limit. A packet that is too large or cannot
// become valid is refused as soon as its first bytes are there, so that nothing is buffered for it.
func Frame(b []byte, max int) (first byte, body []byte, size int, err error) {
	if len(b) < 2 {
		if len(b) == 1 {
			err = checkFirst(b[0])
		}
		return 0, nil, 0, err
	}
	first = b[0]
	if err := checkFirst(first); err != nil {
		return 0, nil, 0, err
	}
	n, w := int(b[1]), 1
	if n >= 0x80 {
		if n, w, err = remaining(b[1:]); w == 0 {
			return 0, nil, 0, err
		}
	}
	size = 1 + w + n
	if size > max && max > 0 {
		return 0, nil, 0, ErrTooLarge
	}
	if len(b) < size {
		return 0, nil, 0, nil
	}
	return first, b[1+w : size : size], size, nil
}

// remaining decodes a remaining length; w is 0 while it is incomplete.
func remaining(b []byte) (n, w int, err error) {
	for i, c := range b {
		if i == 4 {
			break
		}
		n |= int(c&0x7f) << (7 * i)
		if c < 0x80 {
			return n, i + 1, nil
		}
	}
	if len(b) >= 4 {
		return 0, 0, ErrLength
	}
	return 0, 0, nil
}

// CheckLength returns an error when the fixed header of a packet of version 5 holds its remaining length in more bytes than it needs.
// Frame does not know the version; older versions have no such rule. size and body are what Frame returned.
func CheckLength(version byte, size, body int) error {
	if version >= V5 && size != 1+varintLen(uint32(body))+body {
		return ErrLengthForm
	}
	return nil
}

// checkFirst refuses a first byte that no version allows. The DUP flag that only MQTT 3.1 has on PUBREL, SUBSCRIBE and UNSUBSCRIBE
// is left to their decoders, which know the version.
func checkFirst(first byte) error {
	switch first >> 4 {
	case 0:
		return ErrType
	case TypePublish:
		if first&6 == 6 {
			return ErrPublishQoS
		}
	case TypePubrel, TypeSubscribe, TypeUnsubscribe:
		if first&7 != 2 {
			return ErrFlags
		}
	default:
		if first&15 != 0 {
			return ErrFlags
		}
	}
	return nil
}

// checkFlags2 checks the flags of the packet types whose reserved flags are 0010.
func checkFlags2(version, first byte) error {
	if first&15 == 2 || version == V31 && first&7 == 2 {
		return nil
	}
	return ErrFlags
}

// varintLen returns how many bytes the variable byte integer x takes.
func varintLen(x uint32) int {
	switch {
	case x < 1<<7:
		return 1
	case x < 1<<14:
		return 2
	case x < 1<<21:
		return 3
	}
	return 4
}
