//! Failures of a server that cannot listen on an address, with advice that fits the cause.

use std::{
    fs, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use thalweg_cluster::NodeError;
use thalweg_server::ServerError;
use thalweg_types::Classified;

use crate::failure::{Exit, Failure};

/// Maximum number of this machine's addresses that the advice to the user lists.
const MAX_LISTED: usize = 8;

/// Creates the failure of the command for a server that could not start, for example because an address is in use.
pub(super) fn of_server(error: &ServerError) -> Failure {
    let option = match error {
        ServerError::BindNative(_) | ServerError::BindNext(_) => "--native",
        ServerError::BindResp { .. } => "--resp",
        _ => "--http",
    };
    match error.unbound() {
        Some((address, cause)) => unbound(error, address, cause, option),
        None => Failure::of(error),
    }
}

/// Creates the failure of the command for a cluster member that could not start, for example because an address is in
/// use.
pub(super) fn of_node(error: &NodeError) -> Failure {
    match error {
        NodeError::Bind { address, error: cause } => unbound(error, *address, cause, "--cluster"),
        _ => Failure::of(error),
    }
}

/// Creates the failure of a server that cannot listen. A supervisor does not restart a server after the exit code of a
/// wrong configuration, so this failure has another exit code. A restart may help, because the process that listens
/// there may be about to end, or the network may not have the address yet.
fn unbound(error: &impl Classified, address: SocketAddr, cause: &io::Error, option: &str) -> Failure {
    Failure { exit: Exit::Unavailable, ..Failure::of(error) }.then(advice(address, cause.kind(), option, own_addresses))
}

fn advice(address: SocketAddr, cause: io::ErrorKind, option: &str, own: impl FnOnce() -> Vec<IpAddr>) -> String {
    match cause {
        io::ErrorKind::AddrInUse => {
            format!("stop the process that listens there, or choose another address with {option}")
        }
        io::ErrorKind::AddrNotAvailable => {
            format!(
                "this machine has no address {}; choose one of its addresses with {option}: {}",
                address.ip(),
                listed(&own())
            )
        }
        io::ErrorKind::PermissionDenied if address.port() < 1024 => {
            format!("ports below 1024 need the capability CAP_NET_BIND_SERVICE; choose a higher port with {option}")
        }
        _ => format!("choose another address with {option}"),
    }
}

fn listed(addresses: &[IpAddr]) -> String {
    if addresses.is_empty() {
        return "`ip address` lists them".to_owned();
    }
    let shown: Vec<_> = addresses.iter().take(MAX_LISTED).map(ToString::to_string).collect();
    let more = addresses.len() - shown.len();
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{rest}", shown.join(", "))
}

/// Returns the addresses of this machine; an empty list if the system does not report them.
fn own_addresses() -> Vec<IpAddr> {
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
    [ipv4_addresses(&text("/proc/net/fib_trie")), ipv6_addresses(&text("/proc/net/if_inet6"))].concat()
}

/// Returns the local IPv4 addresses in `routes`, the contents of `/proc/net/fib_trie`.
fn ipv4_addresses(routes: &str) -> Vec<IpAddr> {
    let mut found = Vec::new();
    let mut leaf = None;
    for line in routes.lines().map(str::trim_start) {
        if let Some(address) = line.strip_prefix("|-- ") {
            leaf = address.parse::<Ipv4Addr>().ok().map(IpAddr::from);
        } else if line.starts_with("/32 host LOCAL")
            && let Some(address) = leaf
            && !found.contains(&address)
        {
            found.push(address);
        }
    }
    found
}

/// Returns the IPv6 addresses in `interfaces`, the contents of `/proc/net/if_inet6`. Leaves out addresses that are
/// valid on only one network interface.
fn ipv6_addresses(interfaces: &str) -> Vec<IpAddr> {
    let addresses = interfaces.lines().filter_map(|line| {
        let digits = line.split_whitespace().next()?;
        u128::from_str_radix(digits, 16).ok().map(Ipv6Addr::from)
    });
    addresses.filter(|address| !address.is_unicast_link_local()).map(IpAddr::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUTES: &str = "\
Main:
  +-- 0.0.0.0/0 3 0 4
     |-- 0.0.0.0
        /0 universe UNICAST
     |-- 10.1.2.0
        /24 link UNICAST
     |-- 10.1.2.3
        /32 host LOCAL
     |-- 127.0.0.0
        /8 host LOCAL
     |-- 127.0.0.1
        /32 host LOCAL
     |-- 127.255.255.255
        /32 link BROADCAST
Local:
     |-- 10.1.2.3
        /32 host LOCAL
";

    const INTERFACES: &str = "\
00000000000000000000000000000001 01 80 10 80       lo
fe800000000000000000000000000005 02 40 20 80     eth0
20010db8000000000000000000000007 02 40 00 80     eth0
";

    fn text(addresses: &[IpAddr]) -> Vec<String> {
        addresses.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_advice_fits_the_cause() {
        let at: SocketAddr = "10.9.9.9:80".parse().unwrap();
        let own = || vec!["127.0.0.1".parse().unwrap(), "::1".parse().unwrap()];
        let said = |kind| advice(at, kind, "--http", own);
        assert!(said(io::ErrorKind::AddrInUse).starts_with("stop the process that listens there"));
        let away = said(io::ErrorKind::AddrNotAvailable);
        let wanted = "this machine has no address 10.9.9.9; choose one of its addresses with --http: 127.0.0.1, ::1";
        assert_eq!(away, wanted);
        assert!(said(io::ErrorKind::PermissionDenied).contains("CAP_NET_BIND_SERVICE"));
        assert_eq!(said(io::ErrorKind::Other), "choose another address with --http");
    }

    #[test]
    fn a_server_at_the_address_of_another_machine_blames_no_other_server() {
        let (http, error) = ("10.9.9.9:7800".parse().unwrap(), io::Error::from(io::ErrorKind::AddrNotAvailable));
        let failure = of_server(&ServerError::Bind { http, error });
        let said = failure.to_string();
        assert_eq!((failure.exit, &failure.code[..]), (Exit::Unavailable, "bind"));
        assert!(said.contains("no address 10.9.9.9") && said.contains("--http"), "{said}");
        assert!(!said.contains("another server") && !said.contains("stop the process"), "{said}");
    }

    #[test]
    fn addresses_are_listed_once_and_not_without_bound() {
        assert_eq!(text(&ipv4_addresses(ROUTES)), ["10.1.2.3", "127.0.0.1"]);
        assert_eq!(text(&ipv6_addresses(INTERFACES)), ["::1", "2001:db8::7"]);
        let many: Vec<_> = (0..10).map(|last| IpAddr::from([10, 0, 0, last])).collect();
        let shown = listed(&many);
        assert!(shown.ends_with("10.0.0.7 and 2 more"), "{shown}");
        assert_eq!(listed(&[]), "`ip address` lists them");
    }
}
