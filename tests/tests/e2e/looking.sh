# Runs in separate mount and network namespaces, where no other test removes leftovers: prints the read-only commands
# that change something. $1: the binary.
set -eu
trawl=$1
mount -t bpf -o mode=0700 bpf /sys/fs/bpf
mkdir -p /run/trawl
mount -t tmpfs -o mode=0700 tmpfs /run/trawl
ip link set lo up
ip link add near type veth peer name far
ip link set near up
ip link set far up
ip link add spread type veth peer name backends
ip link set spread up
ip link set backends up

state() {
    ip -d link show | grep -v qlen
    bpftool -j net show
    ethtool -k near
    ethtool -k far
    find /sys/fs/bpf | sort
    # The first command creates the directory in which running commands register.
    find /run/trawl -not -type d | sort
}

"$trawl" guard load lo
"$trawl" guard deny --src 192.0.2.1
"$trawl" balance load spread
"$trawl" xdp load near tx
# Another tool removes a program, which leaves pins, and features of the other end.
pins=$(dirname "$(find /sys/fs/bpf/trawl -name tx_rodata)")
bpftool link detach pinned "$(dirname "$pins")/link"
# A command that is killed at its start leaves such a directory.
mkdir /sys/fs/bpf/trawl/1_1-7
before=$(state)
while read -r command; do
    # A command may report a problem, but must be valid usage.
    # shellcheck disable=SC2086
    said=$("$trawl" $command 2>&1) && status=0 || status=$?
    [ $status -ne 2 ] || echo "USAGE $command: $said"
    after=$(state)
    [ "$before" = "$after" ] || echo "CHANGED by $command: $(diff <(echo "$before") <(echo "$after"))"
    before=$after
done <<'END'
xdp status
xdp status -i near --json
xdp status --all-namespaces
xdp stats
xdp stats -i lo --json
xdp maps
guard list
guard list --json
guard stats --json
guard save
route stats
balance vip list --on spread
balance stats --on spread --json
doctor -i near
doctor -i lo --json
taps
lab list
capture -i near --tap packet --duration 50ms -w /run/trawl.pcapng
END
rm -f /run/trawl.pcapng
"$trawl" doctor --clean
[ ! -e "$pins" ] || echo "STAYS after clean: $pins"
echo "looked"
