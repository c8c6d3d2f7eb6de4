//! Settings of a node's membership in a cluster: addresses, names, and the default level of reads.
//!
//! Owns: the types of these values, and their parsing and formatting. Does not own: checks that concern several
//! settings (`cluster_checks`), or the memory of the node's links (`cluster_memory`).

use std::{fmt, net::SocketAddr, sync::Arc};

use thalweg_types::{ReadLevel, limits::MAX_NODE_NAME_BYTES, printable::is_printable};

use super::{Setting, units::optional_address};

/// Maximum length in bytes of a node's zone, and of a host's address.
const MAX_TEXT_BYTES: usize = 255;

/// Address at which a node listens for the other nodes of its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterAddress {
    /// The node listens for no other nodes, and is not a member of a cluster.
    Off,
    /// The node listens for other nodes at this address.
    At(SocketAddr),
}

optional_address!(ClusterAddress, "off, or an address and port such as 127.0.0.1:7072");

/// Address of a node as the other nodes use it: a host name or an IP address, and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort(Arc<str>);

impl HostPort {
    /// Returns the host name or IP address, without the port.
    pub(super) fn host(&self) -> &str {
        self.0.rsplit_once(':').map_or(&self.0, |(host, _)| host)
    }

    fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let is_host = !host.is_empty() && text.len() <= MAX_TEXT_BYTES && !host.contains(char::is_whitespace);
        let is_plain = !host.contains(':') || (host.starts_with('[') && host.ends_with(']'));
        let has_port = port.parse::<u16>().is_ok_and(|port| port != 0);
        (is_host && is_plain && has_port).then(|| Self(text.into()))
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Addresses of members through which a new node joins, in the order in which it tries them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JoinAddresses(pub Vec<HostPort>);

impl Setting for JoinAddresses {
    const VALUE_NAME: &'static str = "ADDRESSES";

    fn parse(text: &str) -> Result<Self, &'static str> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        let parsed: Option<_> = text.split(',').map(|address| HostPort::parse(address.trim())).collect();
        parsed.map(Self).ok_or("addresses HOST:PORT of members, joined by commas")
    }

    fn show(&self) -> String {
        self.0.iter().map(HostPort::to_string).collect::<Vec<_>>().join(",")
    }
}

/// Address that a node announces to the other nodes, so that they can reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Advertise {
    /// The address at which the node listens for other nodes.
    Listening,
    /// A configured address, for a node that the others reach by a DNS name or through address translation.
    At(HostPort),
}

impl Setting for Advertise {
    const VALUE_NAME: &'static str = "ADDRESS";

    fn parse(text: &str) -> Result<Self, &'static str> {
        match text {
            "listening" => Ok(Self::Listening),
            address => HostPort::parse(address).map(Self::At).ok_or("listening, or HOST:PORT"),
        }
    }

    fn show(&self) -> String {
        match self {
            Self::Listening => "listening".to_owned(),
            Self::At(address) => address.to_string(),
        }
    }
}

/// Name of a node, for people to read. Its characters are printable, because operators see it in terminals and log
/// lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeName(pub String);

impl Setting for NodeName {
    const VALUE_NAME: &'static str = "NAME";

    fn parse(text: &str) -> Result<Self, &'static str> {
        let is_valid = text.len() <= MAX_NODE_NAME_BYTES && text.chars().all(is_printable);
        if is_valid { Ok(Self(text.to_owned())) } else { Err("at most 64 bytes without control characters") }
    }

    fn show(&self) -> String {
        self.0.clone()
    }
}

const _: () = assert!(MAX_NODE_NAME_BYTES == 64, "the message of `NodeName` states the limit");

/// A short text for people to read, such as the zone of a node. Its characters are printable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Label(pub String);

impl Setting for Label {
    const VALUE_NAME: &'static str = "NAME";

    fn parse(text: &str) -> Result<Self, &'static str> {
        let is_valid = text.len() <= MAX_TEXT_BYTES && text.chars().all(is_printable);
        if is_valid { Ok(Self(text.to_owned())) } else { Err("at most 255 bytes without control characters") }
    }

    fn show(&self) -> String {
        self.0.clone()
    }
}

impl Setting for ReadLevel {
    const VALUE_NAME: &'static str = "LEVEL";

    fn parse(text: &str) -> Result<Self, &'static str> {
        match text.parse() {
            Ok(Self::AtLeast(_)) | Err(_) => Err("linearizable, lease or stale"),
            Ok(level) => Ok(level),
        }
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::{Config, ConfigError, Layers};

    #[test]
    fn addresses_of_members_have_host_and_port() {
        let parsed = JoinAddresses::parse("a.example:7072, 10.0.0.1:1,[::1]:2").unwrap();
        assert_eq!(parsed.show(), "a.example:7072,10.0.0.1:1,[::1]:2");
        assert_eq!(JoinAddresses::parse(&parsed.show()), Ok(parsed));
        assert_eq!(JoinAddresses::parse(""), Ok(JoinAddresses::default()));
        for wrong in ["a", ":1", "a:", "a:0", "a:65536", "::1:2", "a:1,", "a b:1"] {
            assert!(JoinAddresses::parse(wrong).is_err(), "{wrong}");
        }
        for wrong in ["", "here", "a:x"] {
            assert!(Advertise::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn names_have_no_characters_that_act_on_a_terminal() {
        for name in ["", "n1", "grün 日本", "a\"b\\c"] {
            assert!(NodeName::parse(name).is_ok() && Label::parse(name).is_ok(), "{name:?}");
        }
        for name in ["a\nb", "\u{1b}[31m", "a\u{7f}", "a\u{9b}", "1n\u{202e}", "\u{2066}a", "\u{200f}", "a\u{2028}b"] {
            assert!(NodeName::parse(name).is_err() && Label::parse(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn settings_of_a_cluster_must_fit_together() {
        let resolve = |text: &str| Layers::new().file_text(Path::new("t.toml"), text).and_then(Layers::resolve);
        let address = "cluster = \"127.0.0.1:7072\"\n";
        for (text, name) in [
            ("cluster_init = true".to_owned(), "cluster_init"),
            ("join = \"a:1\"".to_owned(), "join"),
            ("expect = 3".to_owned(), "expect"),
            ("join_token = \"t\"".to_owned(), "join_token"),
            (format!("{address}cluster_init = true\njoin = \"a:1\""), "join"),
            (format!("{address}expect = 3"), "expect"),
            (format!("{address}expect = 8\njoin = \"a:1\""), "expect"),
            ("cluster = \"0.0.0.0:7072\"".to_owned(), "advertise"),
            ("cluster_tls = true".to_owned(), "cluster_tls"),
            ("cluster_ca = \"a.pem\"".to_owned(), "cluster_ca"),
            (format!("{address}cluster_heartbeat = \"9ms\""), "cluster_heartbeat"),
            (format!("{address}cluster_heartbeat = \"5s\""), "cluster_suspect_after"),
            (format!("{address}cluster_suspect_after = \"2s\""), "cluster_down_after"),
            (format!("{address}cluster_ca = \"a.pem\""), "cluster_certificate"),
            (format!("{address}cluster_certificate = \"a.pem\"\ncluster_key = \"k.pem\""), "cluster_ca"),
            (format!("{address}cluster_certificate = \"a.pem\"\ncluster_ca = \"k.pem\""), "cluster_key"),
        ] {
            let refused = resolve(&text);
            assert!(
                matches!(refused, Err(ConfigError::Range { name: named, .. }) if named == name),
                "{text}: {refused:?}"
            );
        }
        for text in ["cluster_init = true", "join = \"a:1,b:1\"\nexpect = 3", "node_name = \"n1\"\nzone = \"z\""] {
            assert!(resolve(&format!("{address}{text}")).is_ok(), "{text}");
        }
        for (bytes, fits) in [(MAX_NODE_NAME_BYTES, true), (MAX_NODE_NAME_BYTES + 1, false)] {
            let resolved = resolve(&format!("{address}node_name = \"{}\"", "n".repeat(bytes)));
            assert_eq!(resolved.is_ok(), fits, "{bytes} bytes");
        }
        assert!(matches!(resolve("cluster = \"127.0.0.1:7070\""), Err(ConfigError::SamePort { .. })));
        assert!(resolve("read_level = \"at-least=7\"").is_err(), "no revision suits all reads");
    }

    #[test]
    fn links_that_leave_the_machine_use_tls() {
        let uses_tls = |text: &str| {
            Layers::new().file_text(Path::new("t.toml"), text).unwrap().resolve().unwrap().config.links_use_tls()
        };
        let files = "cluster_ca = \"a\"\ncluster_certificate = \"c\"\ncluster_key = \"k\"";
        assert!(uses_tls("cluster = \"10.0.0.1:7072\""));
        assert!(uses_tls("cluster = \"10.0.0.1:7072\"\nallow_unprotected = true"), "it is about clients only");
        assert!(!uses_tls("cluster = \"127.0.0.1:7072\""));
        assert!(uses_tls("cluster = \"127.0.0.1:7072\"\ncluster_tls = true"));
        assert!(uses_tls(&format!("cluster = \"[::1]:7072\"\n{files}")));
    }

    #[test]
    fn clients_get_an_address_that_they_can_reach() {
        let config = Config { advertise: Advertise::parse("db1.example:7072").unwrap(), ..Config::default() };
        assert_eq!(config.reachable("0.0.0.0:7070".parse().unwrap()), "db1.example:7070");
        assert_eq!(config.reachable("10.0.0.1:7070".parse().unwrap()), "10.0.0.1:7070");
        assert_eq!(Config::default().reachable("127.0.0.1:7070".parse().unwrap()), "127.0.0.1:7070");
    }
}
