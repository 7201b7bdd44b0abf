package broker

// diskRefuses tells whether a message may not be taken because the disk is nearly full. What has to be kept is refused;
// what nobody was promised is dropped, or written as long as it fits, by policy. Both are counted.
func (b *Broker) diskRefuses(qos byte) bool {
	if b.o.DiskLow == nil || !b.o.DiskLow() {
		return false
	}
	if qos > 0 {
		b.Stats.RefusedDisk.Add(1)
		return true
	}
	if b.o.Limits.QoS0WhenLow {
		return false
	}
	b.Stats.DroppedDisk.Add(1)
	return true
}
