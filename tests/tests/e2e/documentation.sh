#!/usr/bin/env bash
# Runs the commands of one block of the documentation, each on a line of standard input, in a network with the
# documentation's interfaces: eth0, eth1 and eth2 here, the namespaces web, left, right and pb, and the lab of `trawl
# lab up`. Prints a line `FAILED status command` with the output of each command that fails, and at the end, after a
# line `OUTPUT`, the output of all commands. Called in mount and network namespaces of its own, in a directory with the
# files that the commands name.
set -u
mount -t bpf -o mode=0700 bpf /sys/fs/bpf
mkdir -p /run/netns /run/trawl
mount -t tmpfs tmpfs /run/netns
mount -t tmpfs -o mode=0700 tmpfs /run/trawl
mount -t sysfs sysfs /sys 2>/dev/null && mount -t bpf -o mode=0700 bpf /sys/fs/bpf

ip link set lo up
for name in web left right pb; do
    ip netns add "$name"
done
number=0
for interface in eth0 eth1 eth2; do
    number=$((number + 1))
    ip link add "$interface" numrxqueues 4 numtxqueues 4 type veth peer name "p$number" numrxqueues 4 numtxqueues 4
    ip addr add "10.$number.0.1/24" dev "$interface"
    ip link set "$interface" up
    ip link set "p$number" netns web
    ip -n web addr add "10.$number.0.2/24" dev "p$number"
    ip -n web link set "p$number" up
done
ip -n pb link add b0 type veth peer name b1
ip -n pb link set b0 up
ip -n web link add veth0 type veth peer name veth1
ip -n web link set veth0 up
ip -n web link set veth1 up
ip -n left link add eth0 type veth peer name eth0 netns right
for side in 1:left 2:right; do
    ip -n "${side#*:}" addr add "10.9.0.${side%:*}/24" dev eth0
    ip -n "${side#*:}" link set eth0 up
done
# The route leads to the servers of the guide's balancer, 10.0.0.5 and 10.0.0.6.
ip route add 10.0.0.0/24 via 10.1.0.2
sysctl -q -w net.ipv4.ip_forward=1
trawl lab up >/dev/null

# Each interface has traffic as long as the block runs.
for to in 1 2 3; do
    ping -q -i 0.2 "10.$to.0.2" >/dev/null 2>&1 &
done
ip netns exec trawl-lab-a ping -q -i 0.2 10.77.0.2 >/dev/null 2>&1 &
# `trawl gen tcp-conn` needs a listener.
ip netns exec trawl-lab-b perl -MIO::Socket::INET -e '
    $SIG{CHLD} = "IGNORE";
    my $listener = IO::Socket::INET->new(LocalPort => 8080, Listen => 100, ReuseAddr => 1) or die;
    while (my $peer = $listener->accept) { if (!fork) { 1 while sysread $peer, my $data, 65536; exit } }' &
trap 'kill $(jobs -p) 2>/dev/null; trawl lab clean --all >/dev/null 2>&1' EXIT

reset() {
    for interface in eth0 eth1; do
        trawl guard unload "$interface" --yes
        trawl xdp unload "$interface" --all
    done
    trawl route unload
    true
} >/dev/null 2>&1

# Consecutive commands may belong together, be alternatives, or need an attached program.
variants() {
    attempt "$1" && return
    [ "$status" = 1 ] || return
    case $1 in "trawl lab up"*) trawl lab down >/dev/null 2>&1 ;; esac
    reset
    attempt "$1" && return
    reset
    trawl xdp load eth0 filter.o >/dev/null 2>&1
    attempt "$1" && return
    reset
    trawl xdp load eth0 filter.o --tappable >/dev/null 2>&1
    attempt "$1"
}

# Endless commands are interrupted after three seconds. Others end on their own, which takes longer on a busy machine.
attempt() {
    local seconds=3
    [[ $1 != *" load "* && $1 != *" xdp test "* && $1 != *" -c "* && $1 != *"--duration "* && $1 == *trawl* ]] || seconds=60
    timeout --kill-after 60 --signal INT $seconds bash -c "$1" >output 2>&1
    status=$?
    [ "$status" = 0 ] || [ "$status" = 124 ]
}

background=()
number=0
while IFS= read -r line; do
    number=$((number + 1))
    if [[ $line == *'&' ]]; then
        # On a busy machine the other commands take longer, so this one runs until the end of the block.
        line=$(sed -E 's/--duration [0-9]+s/--duration 600s/' <<<"${line%&}")
        timeout --kill-after 60 --signal INT 600 bash -c "$line" >"output.$number" 2>&1 &
        background+=($!)
        continue
    fi
    id=$(trawl xdp status --json 2>/dev/null | grep -oE '"id": *[0-9]+' | head -n 1 | tr -dc 0-9)
    line=${line// ID/ ${id:-ID}}
    variants "$line" || {
        printf 'FAILED %s %s\n' "$status" "$line"
        cat output
    }
    mv output "output.$number"
done
# Commands in the background print their figures only at their end.
for process in "${background[@]}"; do
    kill -TERM "$process" 2>/dev/null
    wait "$process"
done
echo OUTPUT
cat $(seq --format 'output.%.0f' "$number")
