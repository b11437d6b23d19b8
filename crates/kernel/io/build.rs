//! Links the libpcap of a static binary, `libpcap.a` in the directory that `TRAWL_LIBPCAP_DIR` names (scripts/dist
//! builds it).

fn main() {
    println!("cargo::rerun-if-env-changed=TRAWL_LIBPCAP_DIR");
    if std::env::var_os("CARGO_FEATURE_STATIC").is_some() {
        let directory = std::env::var("TRAWL_LIBPCAP_DIR").expect("TRAWL_LIBPCAP_DIR names the directory of libpcap.a");
        println!("cargo::rustc-link-search=native={directory}");
        println!("cargo::rustc-link-lib=static=pcap");
    }
}
