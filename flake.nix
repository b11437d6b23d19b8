# trawl for Nix: `nix build` builds the programs from this directory, `nix run . -- doctor` runs trawl.
{
  description = "Capture, filter, generate and measure packets on the fast path of Linux";

  # nixpkgs is the one of the flake registry, or of the flake that uses this one.
  outputs =
    { self, nixpkgs }:
    let
      systems = [
        "x86_64-linux"
        "aarch64-linux"
      ];
      version = (nixpkgs.lib.importTOML ./Cargo.toml).workspace.package.version;
      forEach = make: nixpkgs.lib.genAttrs systems (system: make nixpkgs.legacyPackages.${system});
      meta = {
        description = "Capture, filter, generate and measure packets on the fast path of Linux";
        license = with nixpkgs.lib.licenses; [
          asl20
          gpl2Only
        ];
        platforms = systems;
        mainProgram = "trawl";
      };

      # A workspace's programs; fleet/ has a lock file of its own.
      programs =
        pkgs: pname: more:
        pkgs.rustPlatform.buildRustPackage (
          {
            inherit pname version meta;
            src = self;
            nativeBuildInputs = [ pkgs.pkg-config ];
            buildInputs = [
              pkgs.elfutils
              pkgs.zlib
              pkgs.zstd
            ];
            # The tests need root and namespaces.
            doCheck = false;
          }
          // more
        );
      main =
        pkgs:
        programs pkgs "trawl-programs" {
          cargoLock.lockFile = ./Cargo.lock;
          cargoBuildFlags = [
            "--package=trawl"
            "--package=trawl-bench"
          ];
          # The compiler for BPF programs, without the flags of Nix's wrapper; the kernel's headers are not in /usr/include.
          CLANG = "${pkgs.llvmPackages_19.clang-unwrapped}/bin/clang";
          C_INCLUDE_PATH = "${pkgs.linuxHeaders}/include";
        };
      fleet =
        pkgs:
        programs pkgs "trawl-fleet" {
          cargoRoot = "fleet";
          buildAndTestSubdir = "fleet";
          cargoLock.lockFile = ./fleet/Cargo.lock;
          cargoBuildFlags = [ "--workspace" ];
        };
    in
    {
      packages = forEach (pkgs: {
        default = pkgs.stdenv.mkDerivation {
          pname = "trawl";
          inherit version meta;
          src = self;
          dontBuild = true;
          nativeBuildInputs = [ pkgs.makeWrapper ];
          installPhase = ''
            patchShebangs .
            make install DESTDIR= PREFIX=$out BINARY=${main pkgs}/bin/trawl HELPERS=helpers \
              EXTCAP=$out/lib/wireshark/extcap PROFILES=$out/share/wireshark/profiles
            install -D -t $out/libexec/trawl ${main pkgs}/bin/trawl-bench ${fleet pkgs}/bin/trawl-fleet ${fleet pkgs}/bin/trawl-query
            # trawl loads libpcap for filters.
            wrapProgram $out/bin/trawl --prefix LD_LIBRARY_PATH : ${pkgs.lib.makeLibraryPath [ pkgs.libpcap ]}
          '';
        };
      });
    };
}
