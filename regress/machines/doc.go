// Package machines holds a test of the installation guide, docs/install.md: the commands that it shows are run as they stand, on
// three machines; then a whole machine is killed under load and comes back.
//
// A machine is a process in namespaces of its own - network, processes, mounts, host name, System V memory - that plays init:
// it starts what the units of contrib/systemd say, as their users. Killing it kills all that runs there. What lies on its disk
// is a directory and stays. A bridge joins the machines; the test is on it, too. All of this is in a network namespace that
// ends with the test.
//
// What the guide has of others is played: systemctl speaks to that init, apt-get makes what the packages make, scp copies, and
// etcd is the server that neki embeds, reading the variables of /etc/default/etcd (NEKI_ETCD=/usr/bin/etcd takes another).
//
// It needs root, ip and nsenter, and is skipped without them.
package machines
