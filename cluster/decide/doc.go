// Package decide says what to do with a shard, given what is known of it. It is pure: no I/O, no goroutines, no clock;
// the admin gathers, asks, and acts on the answer; the agent asks it what it may promise, start and serve. Each action
// does no harm when it is done again, so after a crash, or at another admin, Decide is just asked anew: all that it needs
// is in the shard's rule and in what the nodes promised.
//
// # For the admin
//
// A look: read rule, shard document, operation and node documents, linearizably; ask every agent's status at once; give
// it to Watch.See and then to Decide. Orders to different nodes go out at once, those to one node in order; a slow one
// must not hold up the next look. A Write is one transaction with three conditions: this admin's epoch (catalog's
// LeaderCond) and the ModRev of the rule, the shard document and the operation as they were looked at; after one, look
// again at once, and so after each order that is done. Verdict.Soon says when to look again without an event. An order carries
// Head: epoch, the action's Term and Sub, and an op_id that is new for every attempt that is not a repetition.
//
// # Rules, terms and a failover
//
// A rule says who leads (Leader), who may acknowledge (Cohort) and how many must (W). Term grows with each change of the
// leader, Sub with each other change. Postgres is told Standbys(rule) and Demand(rule), nothing else, by Lead and Promote.
//
//	phase      leader  meaning                                        next
//	active     x       x leads                                        switching, or promoting in term+1
//	switching  x       x is to resign for Candidate                   promoting in term+1, or active again (sub+1)
//	promoting  ""      recruits are gathered; Prev is the rule before promoting with Leader, when Safe
//	promoting  y       y was chosen, for good, in this term           active when y's barrier was acknowledged; term+1 if y is lost
//
// While a rule is promoting, the rules before it (Prev, back to the last active one) are honoured too: commits that they
// acknowledged must be found. Once the barrier of the new term is acknowledged, its cohort has them all.
//
// A failover is: Write term+1 (only if enough members answer to finish it) - Recruit all - Write Leader and Cohort, by
// the furthest (term, LSN) of a safe set - Follow to the others, Promote to the leader, and again until its status says
// BarrierTerm - Write active. A planned one has Write switching - Fence - (candidate has replayed FencedLSN) before it.
//
// # For the agent: orders, step by step
//
// Every order: Accept under the runner's lock; if the promises changed, write and fsync them before the first step. What is answered from status must be on disk.
//
//   - Recruit, standby: primary_conninfo and restore_command empty in one reload; resume replay; end client sessions; wait
//     until pg_stat_wal_receiver is empty, after 100 ms with SIGTERM to the walreceiver, again until it is gone; then
//     Pledge, fsync; then wait, at most 2 s, until what is local is replayed; answer. Recruit, primary: if it resigned in
//     its term, Pledge, fsync, answer (its demands let nobody acknowledge). Otherwise kill -9 the postmaster and every
//     child, wait until none is left, write standby.signal, Pledge, fsync, answer; then start it as a standby without a
//     source, so that its position becomes known. A promise of that term or a higher one already: answer at once.
//   - Promote: (promises: OwnTerm, OwnSub on disk) make slots of Peers; write Standbys and Acks into
//     synchronous_standby_names (never empty on a member that may lead); remove standby.signal only through pg_promote;
//     pg_promote(wait => false) and poll; then the barrier: INSERT INTO neki.term_log (term, leader, tli, lsn) with
//     synchronous_commit = on and a deadline. Not acknowledged in time is an error, and the order comes again, maybe with
//     more Standbys: it then goes on with the barrier. A cancelled wait is not an acknowledgement. Acknowledged: BarrierTerm,
//     fsync, then client roles are let in, then CHECKPOINT beside. Already primary of the term: only what is missing.
//   - Lead: Standbys and Acks into member.json, then synchronous_standby_names, reload, until sync_priority of every row of
//     pg_stat_replication says so (SHOW is no proof); then one commit that waits for them, with a deadline. InForce in the
//     status is true only after that, for these Standbys and Acks, by this Postgres process; without an acknowledgement it
//     stays false and the order fails. OwnSub refuses an older order that comes late.
//   - Fence: (promises: ResignedTerm on disk first) let no new client transaction begin, wait at most drain for those open;
//     synchronous_standby_names to pgproc.FencedStandbys, reload, until all sync_priority are 0; FencedLSN =
//     pg_current_wal_flush_lsn(); answer. Client sessions are ended after the promotion, not here: it takes 200 ms.
//   - Unfence: a linearizable read of the rule after the order was accepted; MayUnfence; ResignedTerm = 0, fsync; then
//     Lead's steps and client access.
//   - Follow: (promises: RevokedBelowTerm = the order's term on disk) member.json: Source, FollowTerm; a primary that has
//     resigned or is stopped becomes a standby first; primary_conninfo, restore_command stays empty for members that may
//     acknowledge; reload. Sources says whether a source may be written into the configuration, at starts too.
//   - Rewind, Rebuild: refuse while the receiver streams from the leader of the order's term (a late order); Replace, fsync;
//     stop cleanly; pg_rewind or an empty directory and base backup; configuration; start as standby; Replaced, fsync. An
//     agent that finds RewindInProgress at its start says Broken.
//   - Start: HowToStart with ordered; then the barrier (same row, same term) before clients are let in.
//   - Restart: kill -9 as Recruit does, then HowToStart. A Recruit of a standby that is hung does so, too.
//   - Hold and Release: Hold on disk; stop, or start by HowToStart.
//
// The status of a primary, and of a standby where more than one must acknowledge, has all rows of neki.term_log (Rows): a
// timeline's number can be taken twice, and only the barriers tell the two apart.
//
// Always: HowToStart before any start; Serves every sixth of the isolation timeout on a primary, else NOT serving on the
// health stream, synchronous_standby_names to FencedStandbys, client sessions ended, HBA closed, until Confirms with a
// fresh linearizable read; Demands for the configuration.
//
// # Provisioning
//
// From empty instances to a primary with streaming, acknowledging replicas, and new replicas later on. Two rules that it
// never breaks:
//
//   - initdb is ordered once in the life of a shard: never when the shard's document has a system identifier, when any
//     member has data, or when a member that is known doesn't answer.
//   - the rule in the catalog names an acknowledger before Postgres waits for it (grow: catalog first, Postgres second).
//
// Manual: https://www.postgresql.org/docs/current/warm-standby.html#SYNCHRONOUS-REPLICATION
package decide
