package machines

import (
	"context"
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"go.etcd.io/etcd/server/v3/embed"
)

// runEtcd is an etcd that reads its flags from ETCD_ variables, as etcd itself does.
func runEtcd() error {
	cfg := embed.NewConfig()
	flags := flag.NewFlagSet("etcd", flag.ContinueOnError)
	cfg.AddFlags(flags)
	flags.StringVar(&cfg.ClusterState, "initial-cluster-state", cfg.ClusterState, "")
	if err := setFromEnvironment(flags); err != nil {
		return err
	}
	// The flags of addresses keep what they are set to.
	for name, into := range map[string]*[]url.URL{
		"listen-peer-urls": &cfg.ListenPeerUrls, "listen-client-urls": &cfg.ListenClientUrls,
		"initial-advertise-peer-urls": &cfg.AdvertisePeerUrls, "advertise-client-urls": &cfg.AdvertiseClientUrls,
	} {
		one, err := url.Parse(flags.Lookup(name).Value.String())
		if err != nil {
			return err
		}
		*into = []url.URL{*one}
	}
	cfg.LogLevel = "warn"
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return err
	}
	defer e.Close()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	select {
	case <-ctx.Done():
		return nil
	case err := <-e.Err():
		return err
	}
}

// setFromEnvironment sets flags by variables; one that no flag has is a slip of the guide.
func setFromEnvironment(flags *flag.FlagSet) error {
	for _, variable := range os.Environ() {
		name, value, _ := strings.Cut(variable, "=")
		name, ok := strings.CutPrefix(name, "ETCD_")
		if !ok {
			continue
		}
		name = strings.ReplaceAll(strings.ToLower(name), "_", "-")
		if err := flags.Set(name, value); err != nil {
			return fmt.Errorf("%s: %w", variable, err)
		}
	}
	return nil
}
