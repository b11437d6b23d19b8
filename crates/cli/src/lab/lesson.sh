# Runs the commands of a lesson, one a line of standard input, in the mount and network namespaces that this shell was
# started in. Each command's output ends with a line of the byte 036 and the command's status. Namespaces, BPF objects
# and files are in file systems that no other process sees. They disappear with this shell.
exec 3<&0 </dev/null 2>&1
set -u
work=/run/trawl-lesson-$$
finish() {
    trap '' INT TERM
    kill $(jobs -p)
    for name in $(ip netns list | cut -d ' ' -f 1); do
        kill -9 $(ip netns pids "$name")
    done
    cd /
    umount --lazy "$work"
    rmdir "$work"
} >/dev/null 2>&1
trap finish EXIT
mkdir -p /run/netns /run/trawl "$work" &&
    mount -t bpf -o mode=0700 bpf /sys/fs/bpf &&
    mount -t tmpfs tmpfs /run/netns &&
    mount -t tmpfs -o mode=0700 tmpfs /run/trawl &&
    mount -t tmpfs -o mode=0755 tmpfs "$work" &&
    cd "$work" &&
    ip link set lo up
status=$?
printf '\036%s\n' $status
[ $status = 0 ] || exit 1
# Debian's packages install clang under the name of its version only.
newest=$(compgen -c clang- | grep -xE 'clang-[0-9]+' | sort --version-sort | tail -n 1)
if ! command -v clang >/dev/null && [ -n "$newest" ]; then
    clang() { "$newest" "$@"; }
fi
while IFS= read -r -u 3 command; do
    eval "$command" 3<&-
    printf '\036%s\n' $?
done
