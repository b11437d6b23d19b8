//! The remote sessions that a process was started in.

use std::collections::HashSet;
use std::fs;
use std::net::IpAddr;

use trawl_kernel::netns::Namespace;

use super::Session;

/// The programs that answer for remote shells.
const SERVERS: [&str; 3] = ["sshd", "dropbear", "in.telnetd"];
const VARIABLE: &str = "SSH_CONNECTION";
/// Older, and without the server's address.
const OLD_VARIABLE: &str = "SSH_CLIENT";
const ESTABLISHED: &str = "01";

/// The sessions that this process was started in: what the environment says of it, its own and its ancestors' (sudo
/// hides it), and the connections of the servers among them.
pub fn sessions() -> Vec<Session> {
    let mut found: Vec<Session> = Vec::new();
    let own = |name: &str| std::env::var(name).ok();
    found.extend(
        own(VARIABLE)
            .or_else(|| own(OLD_VARIABLE))
            .and_then(|text| parse(&text)),
    );
    for process in ancestors() {
        let environment = fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
        let variable = |name: &str| {
            environment.split(|byte| *byte == 0).find_map(|entry| {
                let text = std::str::from_utf8(entry).ok()?;
                text.strip_prefix(name)?.strip_prefix('=')
            })
        };
        found.extend(
            variable(VARIABLE)
                .or_else(|| variable(OLD_VARIABLE))
                .and_then(parse),
        );
        let name = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
        if SERVERS.iter().any(|server| name.starts_with(server)) {
            found.extend(connections(process));
        }
    }
    let mut known = HashSet::new();
    found.retain(|session| known.insert(session.clone()));
    found
}

/// `client port server port`, or without the server's address.
fn parse(text: &str) -> Option<Session> {
    let fields: Vec<&str> = text.split_whitespace().collect();
    let address = |text: &str| -> Option<IpAddr> {
        let plain = text.split('%').next()?;
        plain
            .parse()
            .ok()
            .map(|address: IpAddr| address.to_canonical())
    };
    let (client, server, port) = match fields.as_slice() {
        [client, _, server, port] => (client, Some(address(server)?), port),
        [client, _, port] => (client, None, port),
        _ => return None,
    };
    Some(Session {
        client: address(client)?,
        server,
        port: port.parse().ok()?,
        seen_in: None,
    })
}

fn ancestors() -> Vec<u32> {
    let parent_of = |process: &u32| -> Option<u32> {
        let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
        line.trim().parse().ok().filter(|parent| *parent != 0)
    };
    std::iter::successors(Some(std::process::id()), parent_of)
        .skip(1)
        .collect()
}

/// The established TCP connections of a process.
fn connections(process: u32) -> Vec<Session> {
    let sockets: HashSet<String> = fs::read_dir(format!("/proc/{process}/fd"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let target = fs::read_link(entry.path()).ok()?;
            let inode = target
                .to_str()?
                .strip_prefix("socket:[")?
                .strip_suffix(']')?;
            Some(inode.to_owned())
        })
        .collect();
    let seen_in = Namespace::of_pid(process).ok().map(|one| one.identity());
    ["tcp", "tcp6"]
        .iter()
        .filter_map(|table| fs::read_to_string(format!("/proc/{process}/net/{table}")).ok())
        .flat_map(|table| {
            let rows: Vec<Session> = table
                .lines()
                .skip(1)
                .filter_map(|row| parse_row(row, &sockets))
                .map(|session| Session { seen_in, ..session })
                .collect();
            rows
        })
        .collect()
}

/// A row of /proc/net/tcp, if it is an established connection by one of these sockets.
fn parse_row(row: &str, sockets: &HashSet<String>) -> Option<Session> {
    let fields: Vec<&str> = row.split_whitespace().collect();
    let (local, remote, state, inode) = (
        fields.get(1)?,
        fields.get(2)?,
        fields.get(3)?,
        fields.get(9)?,
    );
    if *state != ESTABLISHED || !sockets.contains(*inode) {
        return None;
    }
    let (server, port) = parse_end(local)?;
    let (client, _) = parse_end(remote)?;
    Some(Session {
        client,
        server: Some(server),
        port,
        seen_in: None,
    })
}

/// An address as words of the machine's own byte order, and a port.
fn parse_end(text: &str) -> Option<(IpAddr, u16)> {
    let (address, port) = text.split_once(':')?;
    let words: Option<Vec<[u8; 4]>> = (0..address.len() / 8)
        .map(|number| {
            let word = address.get(number * 8..number * 8 + 8)?;
            u32::from_str_radix(word, 16).ok().map(u32::to_ne_bytes)
        })
        .collect();
    let address: IpAddr = match words?.concat().as_slice() {
        bytes @ [_, _, _, _] => <[u8; 4]>::try_from(bytes).ok()?.into(),
        bytes => <[u8; 16]>::try_from(bytes).ok()?.into(),
    };
    Some((address.to_canonical(), u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session() -> Session {
        parse("192.0.2.9 50000 198.51.100.1 22").unwrap()
    }

    #[test]
    fn the_environment_is_read() {
        let session = session();
        assert_eq!(
            (session.client.to_string().as_str(), session.port),
            ("192.0.2.9", 22)
        );
        let mapped = parse("::ffff:192.0.2.9 50000 fe80::1%eth0 2222").unwrap();
        assert_eq!((mapped.client, mapped.port), (session.client, 2222));
        assert_eq!(parse("192.0.2.9 50000 22").unwrap().server, None);
        for text in ["", "a b c d", "192.0.2.9 1 2 3", "1.1.1.1 1 2.2.2.2 99999"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn rows_of_connections_are_read() {
        let sockets = HashSet::from(["77".to_owned()]);
        let words = |address: [u8; 4]| format!("{:08X}", u32::from_ne_bytes(address));
        let row = |state: &str, inode: &str| {
            format!(
                "   1: {}:0016 {}:C350 {state} 00000000:00000000 00:00000000 00000000     0        0 {inode} 1",
                words([198, 51, 100, 1]),
                words([192, 0, 2, 9])
            )
        };
        assert_eq!(parse_row(&row("01", "77"), &sockets), Some(session()));
        assert_eq!(parse_row(&row("0A", "77"), &sockets), None);
        assert_eq!(parse_row(&row("01", "78"), &sockets), None);
        let six = "0000000000000000FFFF0000".to_owned() + &words([192, 0, 2, 9]) + ":0016";
        if cfg!(target_endian = "little") {
            assert_eq!(parse_end(&six), Some((session().client, 22)));
        }
    }
}
