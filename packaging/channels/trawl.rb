# trawl for Homebrew on Linux: the static binaries of a release. scripts/channels fills in version, addresses and sums.
class Trawl < Formula
  desc "Capture, filter, generate and measure packets on the fast path of Linux"
  homepage "@HOMEPAGE@"
  version "@VERSION@"
  license all_of: ["Apache-2.0", any_of: ["GPL-2.0-only", "Apache-2.0"]]

  depends_on :linux

  on_arm do
    url "@RELEASE@/trawl-@VERSION@-linux-aarch64.tar.gz"
    sha256 "@SUM:trawl-@VERSION@-linux-aarch64.tar.gz@"
  end
  on_intel do
    url "@RELEASE@/trawl-@VERSION@-linux-x86_64.tar.gz"
    sha256 "@SUM:trawl-@VERSION@-linux-x86_64.tar.gz@"
  end

  def install
    bin.install Dir["bin/*"]
    # trawl finds its helpers in ../libexec/trawl.
    (libexec/"trawl").install Dir["libexec/trawl/*"]
    man1.install Dir["share/man/man1/*"]
    bash_completion.install "share/bash-completion/completions/trawl"
    zsh_completion.install "share/zsh/vendor-completions/_trawl"
    fish_completion.install "share/fish/vendor_completions.d/trawl.fish"
    pkgshare.install Dir["share/trawl/*"]
    doc.install "README.md", "CHANGELOG.md", "LICENCES.third-party"
  end

  def caveats
    "Captures need root: sudo #{opt_bin}/trawl doctor"
  end

  test do
    # Two packets in a capture file, of which the filter keeps one.
    header = [0xa1b2c3d4, 0x00040002, 0, 0, 65535, 1].pack("V*")
    frames = [53, 9].map do |port|
      frame = ["02000000000202000000000108004500001c0000000040116" \
               "6cf0a0000010a0000029c40#{port.to_s(16).rjust(4, "0")}00080000"].pack("H*")
      [0, 0, frame.size, frame.size].pack("V*") + frame
    end
    (testpath/"sample.pcap").binwrite(header + frames.join)
    assert_match "> 10.0.0.2.53: UDP", shell_output("#{bin}/trawl read -q -n sample.pcap 'udp port 53'")
  end
end
