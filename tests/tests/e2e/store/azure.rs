//! A store in Azure's object store, emulated by Azurite (from npm), if installed.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};

use trawl_tests::generator::generate;
use trawl_tests::skip;

use super::{Places, is_indexed_queried_and_pruned, lab};

const CONTAINER: &str = "trawl";

/// Creates a container. Azurite has a fixed account and key.
const MAKE: &str = r#"
import base64, hashlib, hmac, http.client, sys, email.utils
port, name = int(sys.argv[1]), sys.argv[2]
account = "devstoreaccount1"
key = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
head = {"x-ms-date": email.utils.formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
words = "".join(f"{name}:{value}\n" for name, value in head.items())
words = "PUT" + "\n" * 12 + words + f"/{account}/{account}/{name}\nrestype:container"
sign = hmac.new(base64.b64decode(key), words.encode(), hashlib.sha256).digest()
head["Authorization"] = f"SharedKey {account}:{base64.b64encode(sign).decode()}"
head["Content-Length"] = "0"
ask = http.client.HTTPConnection("127.0.0.1", port)
ask.request("PUT", f"/{account}/{name}?restype=container", headers=head)
assert ask.getresponse().status == 201
"#;

struct Azurite {
    child: Child,
    port: String,
}

impl Drop for Azurite {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Azurite {
    fn open() -> Option<Self> {
        let started = Command::new("azurite-blob")
            .args(["--silent", "--inMemoryPersistence", "--skipApiVersionCheck"])
            .args(["--blobHost", "127.0.0.1", "--blobPort", "0"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let Ok(mut child) = started else {
            skip("azurite-blob is not installed: npm install -g azurite");
            return None;
        };
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let line = lines.by_ref().map_while(Result::ok).find(|line| line.contains("listens on"));
        // A thread reads the output, so that Azurite does not block on it.
        std::thread::spawn(move || lines.count());
        let line = line.expect("Azurite starts");
        let port = line.rsplit(':').next().expect("a port").trim().to_owned();
        let made = Command::new("python3").args(["-c", MAKE, &port, CONTAINER]).status();
        let azurite = Self { child, port };
        assert!(made.is_ok_and(|status| status.success()));
        Some(azurite)
    }

    fn environment(&self) -> Vec<(String, String)> {
        [
            ("AZURE_STORAGE_USE_EMULATOR", "true".to_owned()),
            ("AZURITE_BLOB_STORAGE_URL", format!("http://127.0.0.1:{}", self.port)),
            ("NO_PROXY", "127.0.0.1".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec()
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn store_in_azure_works_like_any_other() {
    let (Some(azurite), Some(lab)) = (Azurite::open(), lab()) else {
        return;
    };
    let places =
        Places { url: format!("az://{CONTAINER}/captures"), environment: azurite.environment(), ..Places::of(&lab) };
    let capture = places.start(&lab, &["--chunk-size", "4KiB", "udp"]);
    generate(&lab, "udp", &["--dst", "10.77.0.2", "--count", "300"]);
    capture.wait_recorded(300);
    capture.stop_well();
    assert_eq!(places.account(), [300, 300, 0, 0, 0]);
    assert_eq!(places.problems(), Vec::<String>::new());
    is_indexed_queried_and_pruned(&places, &lab, 300);
    assert_eq!(places.problems(), Vec::<String>::new());
    let other = Places { url: "az://nothing".to_owned(), ..places };
    let refused = said(&other.command("ls", &[]));
    assert!(refused.contains("ContainerNotFound"), "{refused}");
    assert!(!refused.contains('<'), "{refused}");
}
