//! A network of namespaces: one for each node, and one with a bridge between them, where the clients run.
//!
//! Owns: the namespaces, which end with it, and cuts of one direction between two nodes. A cut gives the sender a wrong
//! hardware address for the receiver, so that the bridge drops its packets, as a broken cable would: nobody gets an
//! error. This needs nothing but `ip`.

use std::{fs::File, os::fd::AsRawFd, process::Command};

use crate::done;

/// Number of the namespace with the bridge and the clients.
pub const HUB: usize = usize::MAX;

/// Hardware address that no interface has.
const NOBODY: &str = "02:00:00:00:ff:ff";

/// The namespaces.
pub struct Network {
    prefix: String,
    nodes: usize,
}

fn ip(args: &[&str]) -> Result<(), String> {
    done(Command::new("ip").args(args)).map_err(|error| format!("ip {}: {error}", args.join(" ")))
}

impl Network {
    /// Creates the namespaces; returns the reason if that is impossible here.
    pub fn create(nodes: usize) -> Result<Self, String> {
        // SAFETY: geteuid takes nothing and cannot fail.
        if unsafe { libc::geteuid() } != 0 {
            return Err("not root".to_owned());
        }
        let network = Self { prefix: format!("tw{}", std::process::id()), nodes };
        let hub = network.name(HUB);
        ip(&["netns", "add", &hub])?;
        ip(&["-n", &hub, "link", "add", "br0", "type", "bridge"])?;
        ip(&["-n", &hub, "addr", "add", "10.77.0.254/24", "dev", "br0"])?;
        ip(&["-n", &hub, "link", "set", "br0", "up"])?;
        ip(&["-n", &hub, "link", "set", "lo", "up"])?;
        for number in 0..nodes {
            let (name, far) = (network.name(number), format!("v{number}"));
            ip(&["netns", "add", &name])?;
            ip(&["-n", &hub, "link", "add", &far, "type", "veth", "peer", "name", "eth0", "netns", &name])?;
            ip(&["-n", &hub, "link", "set", &far, "master", "br0", "up"])?;
            ip(&["-n", &name, "addr", "add", &format!("{}/24", Self::host(number)), "dev", "eth0"])?;
            ip(&["-n", &name, "link", "set", "eth0", "up"])?;
            ip(&["-n", &name, "link", "set", "lo", "up"])?;
        }
        Ok(network)
    }

    /// Name of a node's namespace, or of the hub's.
    pub fn name(&self, number: usize) -> String {
        if number == HUB { format!("{}-hub", self.prefix) } else { format!("{}-n{number}", self.prefix) }
    }

    /// Address of a node.
    pub fn host(number: usize) -> String {
        format!("10.77.0.{}", number + 1)
    }

    /// Loses what one node sends to another.
    pub fn cut(&self, from: usize, to: usize) {
        let (name, host) = (self.name(from), Self::host(to));
        ip(&["-n", &name, "neigh", "replace", &host, "lladdr", NOBODY, "nud", "permanent", "dev", "eth0"]).unwrap();
    }

    /// Ends a cut.
    pub fn heal(&self, from: usize, to: usize) {
        ip(&["-n", &self.name(from), "neigh", "del", &Self::host(to), "dev", "eth0"]).unwrap();
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for number in (0..self.nodes).chain([HUB]) {
            let _ = ip(&["netns", "del", &self.name(number)]);
        }
    }
}

/// Moves this thread into a namespace.
pub fn enter(name: &str) {
    let file = File::open(format!("/run/netns/{name}")).expect("the namespace is there");
    // SAFETY: the descriptor is open, and the call changes only this thread.
    let entered = unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) };
    assert_eq!(entered, 0, "{}", std::io::Error::last_os_error());
}
