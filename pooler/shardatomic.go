package pooler

import "neki/internal/pgerr"

// commitAtomic commits on all writers or on none.
func (c *Session) commitAtomic(writers, readers []*member) error {
	c.rollbackShards()
	return pgerr.New(pgerr.NotImplemented, "not implemented: [118] a commit on several shards under __neki.tx_mode = 'atomic'")
}
