//! The configuration of the NATS servers: accounts as docs/internals/agents.md describes them, and a cluster if there are
//! several servers.

use std::fmt::Write as _;

use super::{ON_SERVERS, Plan, User};

/// Port of the connections between servers.
const CLUSTER_PORT: u16 = 6222;

/// Returns the configuration of a server.
pub fn configuration(plan: &Plan, server: &str, operator: &User, hosts: &[User]) -> String {
    let tls = format!(
        "tls {{\n  cert_file: \"{ON_SERVERS}/server.pem\"\n  key_file: \"{ON_SERVERS}/server-key.pem\"\n  \
         ca_file: \"{ON_SERVERS}/ca.pem\"\n  verify: true\n}}\n"
    );
    let mut text = format!(
        "# A NATS server for trawl, made by trawl fleet init.\n\
         server_name: \"{server}\"\nlisten: \"0.0.0.0:{}\"\n\
         # Clients learn the names of the other servers, for which these have certificates.\n\
         client_advertise: \"{}\"\n\
         # With nats-server 2.10 or newer, sync_interval: always writes each command to the disk at once.\n\
         jetstream {{ store_dir: \"/var/lib/nats\" }}\n{tls}",
        plan.port,
        plan.address(server)
    );
    if plan.servers.len() > 1 {
        let others = plan.servers.iter().filter(|other| *other != server);
        let routes: Vec<String> = others.map(|other| format!("\"nats://{}\"", route(other))).collect();
        let _ = write!(
            text,
            "cluster {{\n  name: trawl\n  listen: \"0.0.0.0:{CLUSTER_PORT}\"\n  routes: [{}]\n  {}}}\n",
            routes.join(", "),
            tls.replace('\n', "\n  ").trim_end_matches(' ')
        );
    }
    text + &accounts(operator, hosts)
}

fn route(server: &str) -> String {
    if server.contains(':') { format!("[{server}]:{CLUSTER_PORT}") } else { format!("{server}:{CLUSTER_PORT}") }
}

/// Returns the accounts: hosts are in one of their own, because a server sends answers to any subject of the asker's
/// account.
fn accounts(operator: &User, hosts: &[User]) -> String {
    let of_host = |host: &User| {
        let (name, key) = (&host.name, host.public_key());
        format!(
            "      {{ nkey: {key}, permissions: {{\n          \
             publish: [\"$JS.API.DIRECT.GET.KV_trawl.$KV.trawl.cmd.*.{name}\", \"$KV.trawl.state.{name}\", \"trawl.log.{name}\"],\n          \
             subscribe: [\"trawl.cmd.*.{name}\", \"trawl.ask.{name}\", \"_INBOX_{name}.*.*\"], allow_responses: true }} }}\n"
        )
    };
    let users: String = hosts.iter().map(of_host).collect();
    format!(
        r#"accounts {{
  CONTROL {{
    jetstream: enabled
    users: [ {{ nkey: {} }} ]
    exports: [
      {{ service: "$JS.API.DIRECT.GET.KV_trawl.$KV.trawl.cmd.>" }}
      {{ service: "$KV.trawl.state.>" }}
      {{ service: "trawl.log.>" }}
      {{ stream: "trawl.cmd.>" }}
    ]
    imports: [ {{ service: {{ account: HOSTS, subject: "trawl.ask.>" }} }} ]
  }}
  HOSTS {{
    users: [
{users}    ]
    exports: [ {{ service: "trawl.ask.>" }} ]
    imports: [
      {{ service: {{ account: CONTROL, subject: "$JS.API.DIRECT.GET.KV_trawl.$KV.trawl.cmd.>" }} }}
      {{ service: {{ account: CONTROL, subject: "$KV.trawl.state.>" }} }}
      {{ service: {{ account: CONTROL, subject: "trawl.log.>" }} }}
      {{ stream: {{ account: CONTROL, subject: "trawl.cmd.>" }} }}
    ]
  }}
}}
"#,
        operator.public_key()
    )
}

/// Returns the users for trawl fleet bus.
pub fn users(operator: &User, hosts: &[User]) -> String {
    let key = operator.public_key();
    let hosts: String = hosts.iter().map(|host| format!("\"{}\" = \"{}\"\n", host.name, host.public_key())).collect();
    format!("# Users for trawl fleet bus.\noperators = [\"{key}\"]\n[hosts]\n{hosts}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_are_the_documented_ones() {
        let text = include_str!("../../../docs/internals/agents.md");
        let start = text.find("accounts {").expect("the example");
        let end = text[start..].find("```").expect("its end");
        let (operator, hosts) = (User::new("operator"), [User::new("alpha"), User::new("beta")]);
        let documented = text[start..start + end]
            .replace("OPERATOR", &operator.public_key())
            .replace("ALPHA", &hosts[0].public_key())
            .replace("BETA", &hosts[1].public_key());
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&accounts(&operator, &hosts)), words(&documented));
    }
}
