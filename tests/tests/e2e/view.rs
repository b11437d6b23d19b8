//! `trawl store serve`: the page about a store, its answers compared with the commands', and hostile requests.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::thread;

use serde_json::Value;
use trawl_tests::frames::{ipv4_udp, ipv6_udp, silent, tcp_to, udp_to};
use trawl_tests::witness::{run, tshark};
use trawl_tests::{Capture, Lab, Running, args, fleet_or_skip, skip, trawl, wait_until};

const COUNT: u64 = 300;
const TOKEN: &str = "a-token-that-is-random-elsewhere";
/// A query that takes hours.
const ENDLESS: &str =
    "SELECT count(*) FROM packets a, packets b, packets c, packets d WHERE a.length+b.length+c.length+d.length=7";

/// A page about a store, on a free port.
pub struct Page {
    running: Running,
    address: String,
}

/// A store with the records of two hosts, and its page.
struct Served {
    lab: Lab,
    url: String,
    page: Page,
}

/// An answer of the page.
pub struct Answer {
    pub status: u16,
    head: String,
    pub body: Vec<u8>,
}

impl Answer {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }
}

/// Returns the contents of the chunks of an answer.
fn unchunked(mut chunks: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    loop {
        let line = chunks.windows(2).position(|end| end == b"\r\n").expect("a complete answer");
        let length = usize::from_str_radix(&String::from_utf8_lossy(&chunks[..line]), 16).expect("a length");
        if length == 0 {
            return whole;
        }
        whole.extend_from_slice(&chunks[line + 2..line + 2 + length]);
        chunks = &chunks[line + 2 + length + 2..];
    }
}

/// Sends a request's first line and headers, each with its end, and a body.
fn send(address: &str, head: &str, body: &str) -> Answer {
    let mut stream = TcpStream::connect(address).expect("it listens");
    // The server may refuse a request before it has read all of it.
    let _ = write!(stream, "{head}Content-Length: {}\r\n\r\n{body}", body.len());
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    let end = bytes.windows(4).position(|end| end == b"\r\n\r\n").expect("an answer");
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let status = head.split(' ').nth(1).expect("a status").parse().expect("a number");
    let body = bytes[end + 4..].to_vec();
    let body = if head.contains("Transfer-Encoding: chunked") { unchunked(&body) } else { body };
    Answer { status, head, body }
}

/// Returns a target with parameters.
fn target(path: &str, parameters: &[(&str, &str)]) -> String {
    let escaped = |text: &str| text.bytes().map(|byte| format!("%{byte:02x}")).collect::<String>();
    let pairs = parameters.iter().map(|(name, value)| format!("{name}={}", escaped(value)));
    format!("{path}?{}", pairs.collect::<Vec<_>>().join("&"))
}

fn get(address: &str, path: &str, parameters: &[(&str, &str)]) -> Answer {
    let target = target(path, parameters);
    send(address, &format!("GET {target} HTTP/1.1\r\nHost: {address}\r\n"), "")
}

impl Page {
    pub fn serve(url: &str, options: &[&str]) -> Self {
        let base = args!("store serve {url} --listen 127.0.0.1:0 --spool /nonexistent");
        let running = Running::start(&[&base[..], options].concat(), "serving http://");
        let said = running.said();
        let address = said.split_once("http://").expect("an address").1;
        let address = address.split('/').next().expect("an address").to_owned();
        Self { running, address }
    }

    pub fn get(&self, path: &str, parameters: &[(&str, &str)]) -> Answer {
        get(&self.address, path, parameters)
    }
}

impl Served {
    fn of(frames: &[Vec<u8>]) -> Option<Self> {
        if !fleet_or_skip() {
            return None;
        }
        let lab = Lab::open()?;
        let url = format!("file://{}", lab.file("store"));
        let receiver = lab.receiver();
        let capture = |host: &str| {
            let spool = lab.file(&format!("spool-{host}"));
            let arguments = args!("-i {receiver} --tap packet -Q in --store {url} --spool {spool} --chunk-size 4KiB");
            Capture::start_on_host(host, &lab, &arguments)
        };
        let hosts = ["alpha", "beta"].map(capture);
        lab.send(frames, COUNT);
        for capture in hosts {
            capture.wait_recorded(COUNT);
            capture.stop_well();
        }
        let indexed = trawl(&["store", "index", &url]);
        assert!(indexed.status.success(), "{indexed:?}");
        let page = Page::serve(&url, &[]);
        Some(Self { lab, url, page })
    }

    fn new() -> Option<Self> {
        Self::of(&[ipv4_udp(0), ipv6_udp(0), silent(64)])
    }

    fn get(&self, path: &str, parameters: &[(&str, &str)]) -> Answer {
        self.page.get(path, parameters)
    }

    fn query(&self, arguments: &[&str]) -> Vec<u8> {
        let base = args!("store query --store {} --spool /nonexistent", self.url);
        let done = trawl(&[&base[..], arguments].concat());
        assert!(done.status.success(), "{done:?}");
        done.stdout
    }

    /// Returns true if the page runs no question.
    fn is_idle(&self) -> bool {
        let stat = |entry: fs::DirEntry| fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
        let mut processes = fs::read_dir("/proc").expect("processes").flatten().map(stat);
        !processes.any(|words| words.contains("query") && words.contains(&self.url))
    }
}

#[test]
fn page_has_the_answers_of_the_commands() {
    let Some(served) = Served::new() else { return };
    let page = served.get("/", &[]);
    assert!(page.head.contains("script-src 'self'") && page.text().contains("page.js"), "{}", page.head);
    assert!(!page.text().contains("http") && !page.text().contains("<style"), "{}", page.text());
    let session = served.get("/api/session", &[]).json();
    assert_eq!((session["store"].as_str(), session["user"].as_str()), (Some(served.url.as_str()), Some("")));

    let listed = trawl(&args!("store ls {} --spool /nonexistent --json", served.url));
    assert_eq!(served.get("/api/store", &[]).body, listed.stdout);

    let sql = "SELECT host, count(*) AS packets FROM packets GROUP BY host ORDER BY host";
    let rows = served.get("/api/rows", &[("sql", sql)]).json();
    let expected = serde_json::json!({
        "columns": ["host", "packets"], "rows": [["alpha", "300"], ["beta", "300"]], "more": false, "remarks": [],
    });
    assert_eq!(rows, expected);
    let some = served.get("/api/rows", &[("sql", sql), ("filter", "udp port 9"), ("host", "beta")]).json();
    assert_eq!(some["rows"], serde_json::json!([["beta", "200"]]));
    let first = served.get("/api/rows", &[("sql", "SELECT * FROM packets"), ("count", "10")]).json();
    assert_eq!((first["rows"].as_array().map(Vec::len), &first["more"]), (Some(10), &Value::Bool(true)));

    let lines = served.get("/api/lines", &[("filter", "udp"), ("count", "50")]).json();
    let expected = String::from_utf8(served.query(&["--filter", "udp", "-n", "-tttt", "-c", "50"])).expect("text");
    let lines: Vec<&str> = lines["lines"].as_array().expect("lines").iter().filter_map(Value::as_str).collect();
    assert_eq!(lines.len(), 50);
    assert_eq!(lines, expected.lines().collect::<Vec<_>>());

    // The page continues at the time of a line, after the packets of this time.
    let time = |line: &str| line[..26].to_owned();
    let skipped = lines[..20].iter().filter(|line| time(line) == time(lines[19])).count();
    let count = (30 + skipped).to_string();
    let next = served.get("/api/lines", &[("filter", "udp"), ("count", &count), ("from", &time(lines[19]))]).json();
    let next: Vec<&str> = next["lines"].as_array().expect("lines").iter().filter_map(Value::as_str).collect();
    assert_eq!(next[skipped..], lines[20..]);

    for selection in [&[("filter", "udp and ip6")][..], &[("sql", "SELECT * FROM packets WHERE host = 'beta'")]] {
        let file = served.get("/packets.pcapng", selection);
        assert!(file.head.contains("attachment; filename=\"packets.pcapng\""), "{}", file.head);
        let [(name, value)] = selection else { panic!("one parameter") };
        let question = if *name == "sql" { vec![*value] } else { vec!["--filter", value] };
        let expected = served.query(&[&question[..], &["--packets", "-"]].concat());
        let path = |name: &str, bytes: &[u8]| {
            fs::write(served.lab.path(name), bytes).expect("a file");
            tshark(&served.lab.file(name), &["frame.time_epoch", "frame.len", "frame.interface_name"])
        };
        let packets = path("page.pcapng", &file.body);
        assert!(packets.len() >= 200, "{}", packets.len());
        assert_eq!(packets, path("command.pcapng", &expected));
    }
    let said = served.page.running.said();
    assert!(said.contains("127.0.0.1 asks /api/lines: --filter=udp"), "{said}");
    assert!(served.page.running.stop().status.success());
}

/// Rows with equal, negative and missing values, and with texts that are hard to quote.
const VALUES: &str = "SELECT id, n, t, f, b, arrow_cast(w, 'Timestamp(Microsecond, Some(\"UTC\"))') AS \"the time\",
    arrow_cast(n, 'Duration(Microsecond)') AS d FROM (VALUES
    (1, 5, 'it''s', 0.1, true, '2026-01-31T14:30:00.000001Z'),
    (2, -5, '', -2.5, false, '2026-01-31T14:30:00Z'),
    (3, NULL, NULL, NULL, NULL, NULL),
    (4, 5, '=\"x\",', 'NaN', true, '1969-12-31T23:59:59.999999Z'),
    (5, -922337203685477, 'é\n', 'inf', NULL, NULL),
    (6, 5, 'it''s', 0.30000000000000004, true, '2026-01-31T14:30:00.000001Z'),
    (7, 0, NULL, 0.3, false, '2026-01-31T14:30:00Z'))
    AS t(id, n, t, f, b, w)";

/// Returns the rows of a table by its pages, and checks the pages in the other direction.
fn by_pages(address: &str, sql: &str, order: &[(&str, &str)], count: &str) -> Vec<Value> {
    let walk = |first: Option<(&str, &str)>, next: &str| {
        let mut pages = Vec::new();
        let mut place = first.map(|(name, value)| (name.to_owned(), value.to_owned()));
        loop {
            let mut parameters = [&[("sql", sql), ("count", count)], order].concat();
            parameters.extend(place.iter().map(|(name, value)| (name.as_str(), value.as_str())));
            let answer = get(address, "/api/rows", &parameters);
            assert_eq!(answer.status, 200, "{parameters:?}: {}", answer.text());
            let answer = answer.json();
            let list = |name: &str| answer[name].as_array().expect("a list").clone();
            let (rows, cursors) = (list("rows"), list("cursors"));
            assert_eq!(rows.len(), cursors.len(), "{answer}");
            let end = if next == "after" { cursors.last() } else { cursors.first() };
            place = end.map(|end| (next.to_owned(), end.as_str().expect("a text").to_owned()));
            pages.push(rows);
            if answer["more"] == Value::Bool(false) {
                return pages;
            }
        }
    };
    let forward = walk(None, "after").concat();
    let mut backward = walk(Some(("last", "1")), "before");
    backward.reverse();
    assert_eq!(forward, backward.concat(), "{order:?}");
    forward
}

/// Checks the pages of a table in the order of each of these columns, two at a time.
fn check_columns(columns: &[&str], check: impl Fn(&str) + Sync) {
    let (even, odd): (Vec<_>, Vec<_>) = columns.iter().enumerate().partition(|(number, _)| number % 2 == 0);
    thread::scope(|scope| {
        for part in [even, odd] {
            scope.spawn(|| part.into_iter().for_each(|(_, column)| check(column)));
        }
    });
}

#[test]
fn pages_have_each_row_once_in_both_directions() {
    let request = b"GET / HTTP/1.1\r\nHost: a'b\r\n\r\n";
    let frames = [ipv4_udp(0), ipv6_udp(0), tcp_to(80, request), tcp_to(81, b"x"), udp_to(53, b"x")];
    let Some(served) = Served::of(&frames) else { return };
    let address = &served.page.address;
    let rows = |sql: &str| get(address, "/api/rows", &[("sql", sql)]).json();
    check_columns(&["id", "n", "t", "f", "b", "the time", "d"], |column| {
        for direction in ["asc", "desc"] {
            let found = by_pages(address, VALUES, &[(direction, column), ("asc", "id")], "3");
            let sorted = format!("SELECT * FROM ({VALUES}) ORDER BY \"{column}\" {direction} NULLS LAST, id");
            assert_eq!(rows(&sorted)["rows"], Value::from(found), "{column} {direction}");
        }
    });
    let flows = rows("SELECT * FROM flows LIMIT 0");
    let columns: Vec<_> = flows["columns"].as_array().expect("columns").iter().filter_map(Value::as_str).collect();
    check_columns(&columns, |column| {
        let order = [("desc", column), ("asc", "first"), ("asc", "flow"), ("asc", "nat_flow")];
        let mut found = by_pages(address, "SELECT * FROM flows;", &order, "3");
        found.dedup();
        assert_eq!(found.len(), frames.len(), "{column}");
    });
    let order = [("sql", "SELECT * FROM flows"), ("desc", "first"), ("asc", "flow")];
    let second = served.get("/api/rows", &[&order[..], &[("count", "2")]].concat()).json();
    let after = second["cursors"][1].as_str().expect("a cursor");
    let position = served.get("/api/position", &[&order[..], &[("after", after)]].concat()).json();
    assert_eq!(position["rows"], serde_json::json!([[frames.len().to_string(), "2"]]));
    for (name, value) in [("after", "[1]"), ("after", after), ("last", "1")] {
        assert_eq!(served.get("/api/rows", &[("sql", "SELECT 1"), (name, value)]).status, 400, "{name}={value}");
    }
}

#[test]
fn failed_questions_are_explained() {
    let Some(served) = Served::new() else { return };
    for (path, parameters, why) in [
        ("/api/rows", [("sql", "SELECT nope FROM packets")], "No field named nope"),
        ("/api/rows", [("sql", "COPY packets TO '/tmp/view-wrote.csv'")], "DML not supported"),
        ("/api/rows", [("sql", "CREATE TABLE t AS SELECT 1")], "DDL not supported"),
        ("/api/rows", [("sql", "DROP TABLE packets")], "DDL not supported"),
        ("/api/rows", [("sql", "SELECT * FROM '/etc/passwd'")], "SELECT * FROM packets LIMIT 10"),
        ("/api/rows", [("sql", "--memory=1TiB")], "cannot answer the query"),
        ("/api/lines", [("filter", "port nope")], "unknown port 'nope'"),
        ("/packets.pcapng", [("filter", "port nope")], "unknown port 'nope'"),
        ("/api/lines", [("from", "yesterday")], "yesterday"),
        ("/api/incident", [("incident", "../../nope")], "cannot find the incident"),
    ] {
        let refused = served.get(path, &parameters);
        assert_eq!(refused.status, 422, "{parameters:?}: {}", refused.text());
        assert!(refused.text().contains(why), "{parameters:?}: {}", refused.text());
    }
    for (path, parameters) in [
        ("/api/rows", [("filter", "udp")]),
        ("/api/lines", [("sql", "SELECT 1")]),
        ("/api/lines", [("write", "/tmp/view-wrote.pcapng")]),
        ("/api/lines", [("count", "-1")]),
    ] {
        assert_eq!(served.get(path, &parameters).status, 400, "{parameters:?}");
    }
    assert_eq!(served.get("/nope", &[]).status, 404);
}

#[test]
fn requests_of_other_sites_and_names_are_refused() {
    let Some(served) = Served::new() else { return };
    let address = &served.page.address;
    for (head, status) in [
        ("GET /api/store HTTP/1.1\r\nHost: evil.example\r\n".to_owned(), 403),
        (format!("GET /api/store HTTP/1.1\r\nHost: {address}\r\nOrigin: http://evil.example\r\n"), 403),
        (format!("GET /api/store HTTP/1.1\r\nHost: {address}\r\nSec-Fetch-Site: cross-site\r\n"), 403),
        (format!("GET /packets.pcapng HTTP/1.1\r\nHost: {address}\r\nSec-Fetch-Site: same-site\r\n"), 403),
        (format!("POST /api/rows HTTP/1.1\r\nHost: {address}\r\n"), 405),
        (format!("GET / HTTP/1.1\r\nHost: {address}\r\nX: {}\r\n", "x".repeat(20_000)), 431),
        (format!("GET / HTTP/1.1\r\nHost: {address}\r\nOrigin: http://{address}\r\n"), 200),
    ] {
        assert_eq!(send(address, &head, "").status, status, "{}", &head[..80.min(head.len())]);
    }
}

#[test]
fn users_need_their_tokens() {
    if !fleet_or_skip() {
        return;
    }
    let refused = trawl(&["store", "serve", "file:///nonexistent-store", "--listen", "0.0.0.0:0"]);
    assert!(!refused.status.success(), "{refused:?}");
    let Some(served) = Served::new() else { return };
    let refused = trawl(&["store", "serve", &served.url, "--listen", "0.0.0.0:0"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("--tokens FILE"), "{said}");

    let hash = run("sh", &["-c", &format!("printf %s {TOKEN} | sha256sum | cut -c 1-64")]);
    let hash = hash.trim();
    let tokens = served.lab.file("tokens");
    fs::write(&tokens, format!("# users\nalice {hash}\n")).expect("a file");
    let Page { running: page, address } = Page::serve(&served.url, &["--tokens", &tokens]);
    let rows = target("/api/rows", &[("sql", "SELECT count(*) FROM packets")]);
    let ask = |headers: &str| send(&address, &format!("GET {rows} HTTP/1.1\r\nHost: view.example\r\n{headers}"), "");
    let log_in = |token: &str, origin: &str| {
        let head = format!("POST /api/login HTTP/1.1\r\nHost: view.example\r\nOrigin: {origin}\r\n");
        send(&address, &head, token)
    };
    for headers in ["", "Authorization: Bearer wrong\r\n", "Cookie: trawl=\r\n", "Cookie: trawl=wrong\r\n"] {
        let refused = ask(headers);
        assert_eq!(refused.status, 401, "{headers}: {}", refused.text());
    }
    let bearer = format!("Authorization: Bearer {TOKEN}\r\n");
    assert_eq!(ask(&bearer).status, 200);
    assert_eq!(log_in("wrong", "https://view.example").status, 403);
    assert_eq!(log_in(TOKEN, "https://evil.example").status, 403);
    let logged_in = log_in(TOKEN, "https://view.example");
    let cookie = logged_in.head.lines().find_map(|line| line.strip_prefix("Set-Cookie: ")).expect("a cookie");
    assert!(cookie.contains("HttpOnly; SameSite=Strict") && cookie.ends_with("; Secure"), "{cookie}");
    let cookie = cookie.split(';').next().expect("a cookie");
    assert_eq!(ask(&format!("Cookie: other=1; {cookie}\r\n")).status, 200);
    page.wait_said("alice (127.0.0.1) asks /api/rows: -- SELECT count(*) FROM packets");
    assert!(!page.said().contains(TOKEN));
    // A user that is removed is refused at once.
    fs::write(&tokens, format!("bob {}\n", "0".repeat(64))).expect("a file");
    assert_eq!(ask(&bearer).status, 401);
    assert!(page.stop().status.success());
}

#[test]
fn question_ends_with_its_time_or_its_reader() {
    let Some(served) = Served::new() else { return };
    let ask = |address: &str| {
        let mut stream = TcpStream::connect(address).expect("it listens");
        let target = target("/api/rows", &[("sql", ENDLESS)]);
        write!(stream, "GET {target} HTTP/1.1\r\nHost: {address}\r\n\r\n").expect("it is read");
        stream
    };
    let stream = ask(&served.page.address);
    wait_until("the question runs", || !served.is_idle());
    drop(stream);
    wait_until("it ends with its reader", || served.is_idle());

    let Page { running: page, address } = Page::serve(&served.url, &["--time", "1s", "--at-once", "1"]);
    let mut streams = [ask(&address), ask(&address)];
    for stream in &mut streams {
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer");
        assert!(text.contains("422") && text.contains("it takes more than 1 s"), "{text}");
    }
    assert!(served.is_idle());
    let stream = ask(&address);
    wait_until("another question runs", || !served.is_idle());
    assert!(page.stop().status.success());
    wait_until("it ends with the page", || served.is_idle());
    drop(stream);
}

/// Returns the page as Chromium has built it; `None` without Chromium.
fn shown(served: &Served, state: &str) -> Option<String> {
    let output = Command::new("chromium")
        .args(args!("--headless --no-sandbox --disable-gpu --virtual-time-budget=20000 --dump-dom"))
        .arg(format!("--user-data-dir={}", served.lab.file("chromium")))
        .arg(format!("http://{}/#{state}", served.page.address))
        .stderr(Stdio::null())
        .output();
    let Ok(output) = output else {
        skip("chromium is not installed: the page was not shown");
        return None;
    };
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn chromium_shows_the_page_and_runs_no_text_of_packets() {
    let request = b"GET / HTTP/1.1\r\nHost: <img/src=x/onerror=document.title='run'>\r\n\r\n";
    let Some(served) = Served::of(&[udp_to(53, b"x"), tcp_to(80, request)]) else { return };
    let Some(hosts) = shown(&served, "view=hosts") else { return };
    for part in ["2 hosts, 2 runs", ">alpha</a>", "class=\"run\"", "ended"] {
        assert!(hosts.contains(part), "{part}: {hosts}");
    }
    let shown = |state: &str| shown(&served, state).expect("Chromium");
    let conversations = shown("view=conversations&sort=packets");
    assert!(
        conversations.contains(">1 to 2 of 2<") && conversations.contains("aria-sort=\"descending\""),
        "{conversations}"
    );
    let last = shown("view=conversations&sort=dns_name&last=1");
    assert!(last.contains(">1 to 2 of 2<") && last.contains("id=\"sort-dns_name\""), "{last}");
    let sorted = shown("view=sql&sort=dport&order=asc&sql=SELECT dport, 'it''s' AS t FROM packets;");
    assert!(sorted.contains(">1 to 2 of 2<") && sorted.contains("equal rows are shown once"), "{sorted}");
    let rows = shown("view=sql&sql=SELECT http_host, count(*) FROM packets GROUP BY http_host ORDER BY 1");
    assert!(rows.contains("&lt;img/src=x/onerror=document.title='run'&gt;") && !rows.contains("<img"), "{rows}");
    let failed = shown("view=sql&sql=SELECT nope FROM packets");
    assert!(failed.contains("No field named nope"), "{failed}");
    let packets = shown("view=packets&filter=tcp&count=100");
    assert!(packets.contains("100 packets, and there are more") && packets.contains("alpha:"), "{packets}");
    for page in [&conversations, &rows, &failed, &packets] {
        assert!(!page.contains("<title>run"), "{page}");
    }
}
