package decide

import "time"

// Timing are the times of failover. They bound how long nobody serves; no promise depends on one.
type Timing struct {
	Isolation      time.Duration // after which a primary that can prove nothing fences itself: T
	HostLost       time.Duration // silence of an agent, and of the leader for its acknowledgers, that count as a lost host
	Hung           time.Duration // how long a primary must have been found hung, by probes that failed for two seconds
	Unreachable    time.Duration // how long a leader that replicates but can't be reached is left alone
	Acker          time.Duration // how long an acknowledger may be missing before it is taken from the cohort
	Flap           time.Duration // the least time between an acknowledger's changes
	Gap            time.Duration // how long no source must have a standby's WAL for it to be given up
	Settle         time.Duration // how long a standby must stream before it is taken in
	Straggler      time.Duration // how long recruits that are late are waited for, once there are enough
	Promote        time.Duration // how long a chosen leader may be silent before another is chosen
	Restart        time.Duration // how long a leader that died may try to come up in place when it can't be replaced
	Switchover     time.Duration // bound of a planned switchover, from its start to the change of term
	ReplayBlocked  time.Duration // how long replay may stand before what blocks it is ended
	Frequent       int           // so many failovers lately: prefer a restart in place
	GrowLag        uint64        // bytes behind the leader within which a standby may be taken in
	DiskLowPercent int           // below: read-only
	DiskOKPercent  int           // above: writable again
}

// DefaultTiming is for instances on a local network.
func DefaultTiming() Timing {
	return Timing{
		Isolation: 3 * time.Second, HostLost: 2 * time.Second, Hung: time.Second, Unreachable: 10 * time.Second,
		Acker: 5 * time.Second, Flap: 30 * time.Second, Gap: 3 * time.Second, Settle: time.Second, Straggler: 200 * time.Millisecond,
		Promote: 5 * time.Second, Restart: 60 * time.Second, Switchover: 5 * time.Second,
		ReplayBlocked: 30 * time.Second, Frequent: 2, GrowLag: 16 << 20, DiskLowPercent: 5, DiskOKPercent: 8,
	}
}

// Flaws are known bugs of other cluster managers. Each field puts one in, so that a test can prove that the simulator
// finds it; nothing but tests may set one.
type Flaws struct {
	GrowPostgresFirst     bool // H3: synchronous_standby_names gets a name that the rule doesn't have yet
	ShrinkWithoutBarrier  bool // H3: an acknowledger leaves the rule before the others have what it acknowledged
	RewindInCohort        bool // H5: a member of the cohort is rewound or copied anew
	NoFloor               bool // H5: a node whose data was replaced counts at once
	AnyQuorum             bool // H8: whoever answers is promoted
	LSNAlone              bool // H9: candidates are compared by LSN, not by term
	NoPledge              bool // H7: promotion doesn't wait for recruits' promises
	PledgeWithoutCut      bool // a recruit promises, and its receiver goes on
	StartFromMemory       bool // H17: a restarted primary doesn't read the rule first
	OpenBeforeBarrier     bool // a new primary takes clients before the barrier is acknowledged
	ForgetPromises        bool // promises are answered before they are on disk
	ForgetOutgoing        bool // a promotion that was interrupted is judged by its own cohort alone
	UnconditionalWrites   bool // the catalog is written without comparing revisions
	UnfenceFromMemory     bool // a fenced primary opens again without a linearizable read; promises alone hold then, no schedule found it
	PromoteRdonly         bool // an rdonly member counts and is promoted
	IgnoreOrderOfLead     bool // an older order on synchronous standbys is carried out after a newer one
	FollowWithoutAncestry bool // a node that has diverged is told to stream
}
