package etcdstore

import (
	"context"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"
)

// How soon a server whose host died without a word is given up. gRPC's own pings are no help: etcd refuses clients that ping more
// often than each 5 s. TCP's may come at any rate. What was sent and is not acknowledged is bounded by DialKeepAliveTimeout, which
// gRPC makes TCP_USER_TIMEOUT.
const (
	hostPing    = time.Second
	hostPings   = 2
	connectTime = 2 * time.Second
)

// dialing has connections notice a dead host within about three seconds, watches that only listen included.
func dialing() grpc.DialOption {
	d := &net.Dialer{Timeout: connectTime, KeepAliveConfig: net.KeepAliveConfig{
		Enable: true, Idle: hostPing, Interval: hostPing, Count: hostPings,
	}}
	return grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
		network := "tcp"
		if path, ok := strings.CutPrefix(address, "unix:"); ok {
			network, address = "unix", strings.TrimPrefix(path, "//")
		}
		return d.DialContext(ctx, network, address)
	})
}
