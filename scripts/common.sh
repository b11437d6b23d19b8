# Shared by the scripts: where things are, and which packages and which Rust they need.
# shellcheck shell=bash

# The project's root, whatever directory a script is called from.
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Edition 2024 with `if let … && …`: older compilers stop with a syntax error.
readonly RUST_NEEDED=1.91

# What Debian 12 calls the things that are used. The tests run other tools as judges, and name ports and protocols in
# filters, which libpcap looks up in files of netbase.
readonly BUILD_PACKAGES=(clang-19 gcc libc6-dev linux-libc-dev libelf-dev libzstd-dev zlib1g-dev libpcap0.8 make pkgconf ca-certificates)
readonly DEMO_PACKAGES=(iproute2 tcpdump tshark)
readonly TEST_PACKAGES=(bash-completion bpftool chromium debootstrap dpdk-dev ethtool fish git gzip iproute2 iptables iputils-ping jq libdpdk-dev lintian lz4 nats-server netbase nftables openssh-client openssh-server openssl procps python3-pip strace systemd tcpdump tmux tshark util-linux zsh zstd)
# What the helper for --tap dpdk is built with.
readonly DPDK_PACKAGES=(libdpdk-dev libpcap-dev)
# The virtual machine tier, and what its tests use there. It is done without where they cannot be had.
# The parsers of libpcap are made by bison and flex, for netmap and PF_RING (scripts/build-peers).
readonly VM_PACKAGES=(bison flex ipvsadm qemu-system-x86 xdp-tools)

# What scripts/dist builds a release with: libpcap's parsers, a compiler for arm64, its emulator, and RPM; what it checks with.
readonly DIST_PACKAGES=(bison debootstrap flex git gcc-aarch64-linux-gnu libc6-dev-arm64-cross jq lintian qemu-user-static rpm)
# The libraries that a static binary contains, besides those of the compiler and libpcap.
readonly STATIC_PACKAGES=(libelf-dev libzstd-dev zlib1g-dev)

# All that tests run, by one selection for every purpose: cargo would build another with other features, and again.
readonly TESTED=(--locked --workspace)

# Rustup puts cargo where a root shell does not always look.
if ! command -v cargo >/dev/null && [ -x "${CARGO_HOME:-$HOME/.cargo}/bin/cargo" ]; then
    PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
fi

# Messages of the scripts themselves.
say() {
    printf '%s\n' "$*" >&2
}

die() {
    say "$@"
    exit 1
}

# Where cargo puts what it builds.
target_dir() {
    printf '%s\n' "${CARGO_TARGET_DIR:-target}"
}

# Whether version $1 is at least version $2.
at_least() {
    [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$2" ]
}

# A mirror that does not answer is not waited for long.
apt_options=(-o Acquire::http::Timeout=20 -o Acquire::https::Timeout=20 -o Acquire::Retries=1)

# Downloads a Debian package and unpacks it into a directory, without installing it.
unpack() {
    local package=$1 into=$2 archive
    [ ! -e "$into.ready" ] || return 0
    rm -rf "$into" "$into.deb"
    mkdir -p "$into" "$into.deb"
    (cd "$into.deb" && apt-get "${apt_options[@]}" -o APT::Sandbox::User=root download -qq "$package" >/dev/null) || return 1
    archive=$(echo "$into.deb"/*.deb)
    dpkg -x "$archive" "$into" || return 1
    rm -r "$into.deb"
    touch "$into.ready"
}

# Builds what the tests run, and prints the path of one test program.
test_program() {
    cargo build "${TESTED[@]}" --quiet --bins --tests --message-format json |
        jq -r --arg name "$1" 'select(.profile.test and .target.name == $name).executable // empty'
}

# Lets clippy compile, and refuse what it warns of: one build serves the lints and the tests.
compile_by_clippy() {
    export RUSTC_WORKSPACE_WRAPPER=clippy-driver CLIPPY_ARGS=-Dwarnings__CLIPPY_HACKERY__
}

# Runs a command, and says how many seconds it took.
timed() {
    local what=$1 began=$SECONDS status=0
    shift
    "$@" || status=$?
    say "$((SECONDS - began)) s: $what"
    return "$status"
}
