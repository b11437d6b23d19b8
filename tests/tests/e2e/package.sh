#!/bin/sh
# Installs, runs, upgrades, removes and purges a package in a separate root, $1; the packages are $2 and, of a later
# version, $3 within it. Called in separate mount, network and process namespaces. Prints each completed step, and
# ends at the first failure.
set -eu
root=$1 first=$2 later=$3

mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount -t bpf -o mode=0700 bpf "$root/sys/fs/bpf"
mount --bind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/run"
# A lab, like ip, creates the directory of named namespaces and does not remove it.
mkdir "$root/run/netns"
ip link set lo up

in_root() {
    DEBIAN_FRONTEND=noninteractive LC_ALL=C PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot "$root" "$@"
}

# Lists all possible leftovers of the package, without the records of dpkg and its tools.
files() {
    (cd "$root" && find . -xdev \( -path ./proc -o -path ./sys -o -path ./dev -o -path ./tmp -o -path ./var/log \
        -o -path ./var/lib/dpkg -o -path ./var/cache -o -path ./etc/ld.so.cache \) -prune -o -print | sort)
    (cd "$root/run" && find . | sort)
}

files > "$root/tmp/before"
in_root dpkg --install "/tmp/$first" >/dev/null
echo installed

version() {
    in_root dpkg-query -W -f '${Version}' trawl
}
test "$(version)" = "$(echo "$first" | cut -d _ -f 2)"
in_root trawl --version >/dev/null
in_root sh -c '/usr/lib/*/wireshark/extcap/trawl --extcap-interfaces' | grep -q 'value=trawl:lo'
in_root dpkg --verify trawl
# The installed program captures at a real hook, into a file.
in_root trawl lab up >/dev/null
in_root trawl capture -i trawl-lab-b:veth0 -c 3 -q -w /tmp/seen.pcapng &
capture=$!
until in_root trawl gen udp -i trawl-lab-a:veth0 --dst 10.77.0.2 --count 10 >/dev/null && ! kill -0 "$capture" 2>/dev/null; do
    sleep 0.1
done
wait "$capture"
test "$(in_root trawl read /tmp/seen.pcapng | wc -l)" = 3
in_root trawl lab down >/dev/null
echo ran

# A machine in use has enabled units, a rule file and a recording.
mkdir -p "$root/etc/systemd/system/multi-user.target.wants" "$root/etc/trawl" "$root/var/lib/trawl/captures"
ln -s /lib/systemd/system/trawl-serve.service "$root/etc/systemd/system/multi-user.target.wants/trawl-serve.service"
ln -s /lib/systemd/system/trawl-agent.service "$root/etc/systemd/system/multi-user.target.wants/trawl-agent.service"
echo 'TRAWL_AGENT_OPTIONS=' > "$root/etc/default/trawl-agent"
echo 'TRAWL_OPTIONS=-s 128' > "$root/etc/default/trawl-capture-eth0"
in_root trawl guard save > "$root/etc/trawl/guard.toml" 2>/dev/null || true
cp "$root/tmp/seen.pcapng" "$root/var/lib/trawl/captures/"
in_root dpkg --install "/tmp/$later" >/dev/null
test "$(version)" = "$(echo "$later" | cut -d _ -f 2)"
test -L "$root/etc/systemd/system/multi-user.target.wants/trawl-serve.service"
test -f "$root/var/lib/trawl/captures/seen.pcapng"
in_root trawl --version >/dev/null
# The later version reads the recording and the rules of the first.
test "$(in_root trawl read /var/lib/trawl/captures/seen.pcapng | wc -l)" = 3
in_root trawl guard apply --check /etc/trawl/guard.toml >/dev/null
# An earlier version may lack some of these.
for file in usr/bin/trawl usr/bin/kubectl-trawl usr/bin/kubectl-trawl-fleet usr/share/man/man1/kubectl-trawl.1.gz usr/share/man/man1/trawl-capture.1.gz usr/share/bash-completion/completions/trawl \
    usr/share/zsh/vendor-completions/_trawl usr/share/fish/vendor_completions.d/trawl.fish \
    lib/systemd/system/trawl-capture@.service lib/systemd/system/trawl-guard@.service \
    lib/systemd/system/trawl-serve.service lib/systemd/system/trawl-agent.service lib/systemd/system/trawl-keep@.service usr/share/wireshark/profiles/trawl/preferences \
    usr/share/trawl/alerts.yml usr/share/trawl/grafana.json usr/share/trawl/grafana-agents.json; do
    test -s "$root/$file" || { echo "missing: $file"; exit 1; }
done
test -s "$(echo "$root"/usr/lib/*/wireshark/plugins/trawl.lua)"
echo upgraded

in_root dpkg --remove trawl >/dev/null
test ! -e "$root/usr/bin/trawl"
test -f "$root/etc/default/trawl-capture-eth0" -a -f "$root/var/lib/trawl/captures/seen.pcapng"
echo removed
in_root dpkg --purge trawl >/dev/null
rmdir "$root/etc/systemd/system/multi-user.target.wants" 2>/dev/null || true
files > "$root/tmp/after"
diff "$root/tmp/before" "$root/tmp/after"
echo purged
