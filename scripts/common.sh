# Functions and settings that the scripts share; the packages and the version of Rust that they need.
# shellcheck shell=bash

# Scripts run in the project's root, whatever directory they are called from.
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Edition 2024 with `if let … && …`: older compilers stop with a syntax error.
readonly RUST_NEEDED=1.91

# Names of the packages in Debian 12. Tests compare trawl with other tools, and name ports and protocols in filters,
# which libpcap looks up in files of netbase.
readonly BUILD_PACKAGES=(clang-19 gcc libc6-dev linux-libc-dev libelf-dev libzstd-dev zlib1g-dev libpcap0.8 make pkgconf ca-certificates)
readonly DEMO_PACKAGES=(iproute2 tcpdump tshark)
readonly TEST_PACKAGES=(bash-completion bpftool chromium curl debootstrap dpdk-dev dpkg-dev ethtool fish git gzip iproute2 iptables iputils-ping jq libdpdk-dev lintian lz4 nats-server netbase nftables openssh-client openssh-server openssl procps python3 python3-pip strace systemd tcpdump tmux tshark util-linux zsh zstd)
# Packages for the site (scripts/site).
readonly SITE_PACKAGES=(mandoc python3)
# Packages for building the helper for --tap dpdk.
readonly DPDK_PACKAGES=(libdpdk-dev libpcap-dev)
# Packages for the virtual machine and its tests, which are skipped if these cannot be installed. bison and flex
# generate libpcap's parsers, for netmap and PF_RING (scripts/build-peers).
readonly VM_PACKAGES=(bison flex ipvsadm qemu-system-x86 wireguard-tools xdp-tools)

# Packages of the programs that a cluster of Kubernetes needs besides its own (scripts/test-cluster). They are unpacked in
# the target directory: installing them would start servers.
readonly CLUSTER_PROGRAMS=(etcd-server containerd runc containernetworking-plugins busybox-static)
# Packages that these programs need.
readonly CLUSTER_PACKAGES=(libseccomp2)

# Packages for building and checking a release (scripts/dist), among them generators of libpcap's parsers, a compiler
# and an emulator for arm64, and RPM.
readonly DIST_PACKAGES=(bison debootstrap dpkg-dev flex git gcc-aarch64-linux-gnu libc6-dev-arm64-cross jq lintian netbase qemu-user-static rpm rpmlint)
# Packages for checking the files in packaging/ (scripts/lint-packages).
readonly CHANNEL_PACKAGES=(jq nix-bin rpmlint ruby)
# Packages for the Debian source package (scripts/deb-source).
readonly SOURCE_PACKAGES=(debhelper dpkg-dev jq lintian)
# The libraries that a static binary contains, besides those of the compiler and libpcap.
readonly STATIC_PACKAGES=(libelf-dev libzstd-dev zlib1g-dev)

# Each command selects the same packages: with another selection, cargo would choose other features and build again.
readonly TESTED=(--locked --workspace)

# Root's PATH may lack the directory where rustup puts cargo.
if ! command -v cargo >/dev/null && [ -x "${CARGO_HOME:-$HOME/.cargo}/bin/cargo" ]; then
    PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
fi

# Prints a message of a script.
say() {
    printf '%s\n' "$*" >&2
}

die() {
    say "$@"
    exit 1
}

# Prints the directory of cargo's build results.
target_dir() {
    printf '%s\n' "${CARGO_TARGET_DIR:-target}"
}

# Prints the version in Cargo.toml.
trawl_version() {
    sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' Cargo.toml
}

# Prints a changelog of the Debian packages for version $1.
debian_changelog() {
    cat <<CHANGELOG
trawl ($1) unstable; urgency=medium

  * See /usr/share/doc/trawl/CHANGELOG.md.gz.

 -- trawl's authors <trawl@packages.debian.org>  $(date -uR -d "@$SOURCE_DATE_EPOCH")
CHANGELOG
}

# Succeeds if version $1 is at least version $2.
at_least() {
    [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$2" ]
}

# Short time limits for mirrors that do not answer.
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

# Builds all programs and tests, and prints the path of one test program.
test_program() {
    cargo build "${TESTED[@]}" --quiet --bins --tests --message-format json |
        jq -r --arg name "$1" 'select(.profile.test and .target.name == $name).executable // empty'
}

# Makes clippy compile, with its warnings as errors: one build serves the lints and the tests.
compile_by_clippy() {
    export RUSTC_WORKSPACE_WRAPPER=clippy-driver CLIPPY_ARGS=-Dwarnings__CLIPPY_HACKERY__
}

# Runs a command, and prints its duration.
timed() {
    local what=$1 began=$SECONDS status=0
    shift
    "$@" || status=$?
    say "$((SECONDS - began)) s: $what"
    return "$status"
}

# Sets the names of an architecture: Rust's target, the compiler, Debian's name, and the emulator.
describe_target() {
    target=$1-unknown-linux-gnu prefix=$1-linux-gnu
    case $1 in
        x86_64) debian=amd64 emulator= ;;
        aarch64) debian=arm64 emulator=qemu-aarch64-static ;;
    esac
}

# Prints the profile in which a program of fleet/ is released.
fleet_profile() {
    case $1 in
        trawl-query) echo query ;;
        *) echo release ;;
    esac
}
