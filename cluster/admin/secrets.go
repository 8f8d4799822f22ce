package admin

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"

	"neki/catalog"
	"neki/cluster/agent"
	"neki/internal/pgwire"
)

// Secrets are the passwords of the cluster's own roles, and the verifiers that are the same text on every shard: a
// client's keys, which the gateway passes on, fit all shards only then. They are in the catalog, outside what gateways
// follow; whoever can read etcd can read them, so etcd wants TLS and its own users.
type Secrets struct {
	Replication Secret `json:"replication"`
	Gateway     Secret `json:"gateway"`
	// Roles holds the verifiers of other roles that the admin makes.
	Roles map[string]string `json:"roles,omitempty"`

	modRev int64
}

// Secret is the password of one role.
type Secret struct {
	Password string `json:"password"`
	Verifier string `json:"verifier"`
}

// verifierIterations is Postgres's scram_iterations. They make guessing at a password slow; a random key of ours is beyond
// guessing, and each start of a receiver waits for them.
const (
	verifierIterations = 4096
	randomIterations   = 16
)

func newSecret() Secret {
	password := rand.Text()
	return Secret{Password: password, Verifier: pgwire.NewVerifier(password, randomIterations).Text()}
}

func newVerifier(password string) string {
	return pgwire.NewVerifier(password, verifierIterations).Text()
}

func secretsKey(cluster string) string { return "/neki/v1-secrets/" + cluster + "/roles" }

// LoadSecrets reads the cluster's secrets; catalog.ErrNotFound until an admin has led.
func LoadSecrets(ctx context.Context, store catalog.Store, cluster string) (Secrets, error) {
	e, err := store.Get(ctx, secretsKey(cluster))
	if err != nil {
		return Secrets{}, fmt.Errorf("secrets of cluster %s: %w", cluster, err)
	}
	s := Secrets{modRev: e.ModRev}
	if err := json.Unmarshal(e.Value, &s); err != nil {
		return Secrets{}, fmt.Errorf("secrets of cluster %s: %w", cluster, err)
	}
	return s, nil
}

// GatewayLogin gives the role with which gateways look things up on shards, in database postgres.
func GatewayLogin(ctx context.Context, store catalog.Store, cluster string) (Login, error) {
	s, err := LoadSecrets(ctx, store, cluster)
	return Login{Name: agent.RoleGateway, Password: s.Gateway.Password}, err
}

// ensureSecrets reads the secrets, and makes those that are missing.
func ensureSecrets(ctx context.Context, store catalog.Store, cluster string, epoch int64, super Login) (Secrets, error) {
	s, err := LoadSecrets(ctx, store, cluster)
	if err != nil && !errors.Is(err, catalog.ErrNotFound) {
		return s, err
	}
	missing := false
	for _, one := range []*Secret{&s.Replication, &s.Gateway} {
		if one.Verifier == "" {
			*one, missing = newSecret(), true
		}
	}
	if super.Name != "" && s.Roles[super.Name] == "" {
		if s.Roles == nil {
			s.Roles = map[string]string{}
		}
		s.Roles[super.Name], missing = newVerifier(super.Password), true
	}
	if !missing {
		return s, nil
	}
	value, err := json.Marshal(s)
	if err != nil {
		return s, err
	}
	key := secretsKey(cluster)
	_, err = store.Txn(ctx, []catalog.Cond{catalog.LeaderCond(cluster, epoch), catalog.ModRev(key, s.modRev)},
		[]catalog.Op{catalog.PutOp(key, value)})
	if err != nil {
		return s, fmt.Errorf("secrets of cluster %s: %w", cluster, err)
	}
	return s, nil
}

// roles lists what must exist on every shard.
func (s Secrets) roles(super Login) []agent.RoleSpec {
	specs := []agent.RoleSpec{
		{Name: agent.RoleViewer},
		{Name: agent.RoleOperator, MemberOf: []string{agent.RoleViewer}},
		{Name: agent.RoleReplication, Login: true, Replication: true, Verifier: s.Replication.Verifier},
		{
			Name: agent.RoleGateway, Login: true, Verifier: s.Gateway.Verifier, MemberOf: []string{"pg_monitor"},
			ReadVerifiers: true,
		},
	}
	if super.Name != "" {
		specs = append(specs, agent.RoleSpec{
			Name: super.Name, Login: true, Superuser: true, Verifier: s.Roles[super.Name], Keep: true,
		})
	}
	return specs
}
