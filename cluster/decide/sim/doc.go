// Package sim is a deterministic simulator of one shard: fake Postgres servers, agents, admins, the catalog and the
// network between them, all driven by one seed. The decisions are those of package decide, the very functions that the
// admin and the agents call; everything around them is as unkind as the seed wants: processes are killed, frozen and cut
// off, messages are late, doubled, reordered and lost, clocks run at different rates, disks are lost.
//
// After every acknowledgement and every change the invariants are checked:
//
//	I1, I2  what is acknowledged contains all that was acknowledged before: no loss, and one term at a time
//	I3      Postgres waits for nobody whom the rule doesn't name, and for no fewer than promotions rely on
//	I4      no member of a cohort is ordered to throw data away
//	I5      promises only grow
//	I6      an rdonly member neither acknowledges nor leads
//	I8      when all faults are over, a leader serves
//	I9      a standby's log is a beginning of its source's: nothing is corrupted silently
//
// I7, that every goal can be reached from every state, is a test of its own.
//
// A Schedule is a seed and a list of faults; Shrink leaves out the faults that a failure doesn't need. One goroutine runs
// a schedule; schedules share nothing.
//
// Manual: https://www.postgresql.org/docs/current/warm-standby.html
package sim
