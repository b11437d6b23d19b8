//! The SSH session of a command.

use std::net::{IpAddr, SocketAddr};

use crate::process;

const VARIABLE: &str = "SSH_CONNECTION";

/// A connection by SSH: from its client to this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    pub client: SocketAddr,
    pub server: SocketAddr,
}

impl Session {
    /// Returns the session of this command, from the SSH server's variable. sudo and others hide the variable from a
    /// command: it is then read from the processes that started this one, as far as permitted.
    pub fn of_this_command() -> Option<Self> {
        let own = std::env::var(VARIABLE).ok();
        own.or_else(of_an_ancestor).and_then(|text| text.parse().ok())
    }
}

/// Returns the variable of the nearest process that started this one, directly or indirectly, and has it.
fn of_an_ancestor() -> Option<String> {
    process::ancestors().find_map(|one| process::variable_of(one, VARIABLE))
}

impl std::str::FromStr for Session {
    type Err = ();

    /// Parses client and server, each an address and a port.
    fn from_str(text: &str) -> Result<Self, ()> {
        let fields: Vec<&str> = text.split_ascii_whitespace().collect();
        let end = |address: &str, port: &str| {
            // A link-local address is followed by its interface.
            let address: IpAddr = address.split('%').next()?.parse().ok()?;
            Some(SocketAddr::new(address.to_canonical(), port.parse().ok()?))
        };
        let session = match fields[..] {
            [client, its_port, server, port] => end(client, its_port).zip(end(server, port)),
            _ => None,
        };
        let (client, server) = session.ok_or(())?;
        Ok(Self { client, server })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_are_parsed_from_the_servers_variable() {
        let session: Session = "10.0.0.1 50000 ::ffff:10.0.0.2 22".parse().expect("one");
        assert_eq!(session.client, "10.0.0.1:50000".parse().expect("an end"));
        assert_eq!(session.server, "10.0.0.2:22".parse().expect("an end"));
        let session: Session = "fe80::1%eth0 1 fe80::2%eth0 22".parse().expect("one");
        assert_eq!(session.client.ip(), "fe80::1".parse::<IpAddr>().expect("an address"));
        for text in ["", "10.0.0.1 1 10.0.0.2", "a b c d", "10.0.0.1 1 10.0.0.2 99999", "10.0.0.1 1 10.0.0.2 22 33"] {
            assert_eq!(text.parse::<Session>(), Err(()), "{text}");
        }
    }
}
