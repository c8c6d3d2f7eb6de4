//! Finds the process that listens on a port of this machine in the kernel's tables of sockets.

use std::{fs, net::SocketAddr};

/// State of a listening socket in the kernel's tables.
const LISTEN: &str = "0A";

/// Returns the id of the process that listens on an address of the loopback interface; `None` if it cannot be found.
/// Also returns `None` for this process itself, because its CPU time and memory include those of the load generator.
pub fn other_process(address: SocketAddr) -> Option<u32> {
    listening_process(address).filter(|process| *process != std::process::id())
}

/// Returns the id of the process that listens on an address of the loopback interface. Returns `None` for any other
/// address, because it may belong to another machine. Also returns `None` if this process is not permitted to inspect
/// the listening process.
fn listening_process(address: SocketAddr) -> Option<u32> {
    if !address.ip().is_loopback() {
        return None;
    }
    let inode = ["/proc/net/tcp", "/proc/net/tcp6"].iter().find_map(|path| {
        let text = fs::read_to_string(path).ok()?;
        listening_inode(&text, address.port())
    })?;
    let wanted = format!("socket:[{inode}]");
    let processes = fs::read_dir("/proc").ok()?.flatten();
    processes.filter_map(|process| process.file_name().to_str()?.parse::<u32>().ok()).find(|process| {
        let files = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
        files.filter_map(|file| fs::read_link(file.path()).ok()).any(|target| target.as_os_str() == &*wanted)
    })
}

/// Extracts the inode of the socket that listens on a port from the text of a table of sockets.
fn listening_inode(text: &str, port: u16) -> Option<u64> {
    text.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (_, own_port) = fields.get(1)?.rsplit_once(':')?;
        let is_it = u16::from_str_radix(own_port, 16).ok()? == port && *fields.get(3)? == LISTEN;
        fields.get(9)?.parse().ok().filter(|_| is_it)
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn the_own_listener_is_found() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert_eq!(listening_process(address), Some(std::process::id()));
        assert_eq!(other_process(address), None);
        drop(listener);
        assert_eq!(listening_process(address), None);
        assert_eq!(listening_process("192.0.2.1:80".parse().unwrap()), None);
    }

    #[test]
    fn only_listening_sockets_of_the_port_count() {
        let text = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
            0: 0100007F:1F90 0100007F:C350 01 00000000:00000000 00:00000000 00000000  1000        0 111 1\n   \
            1: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 222 1\n";
        assert_eq!(listening_inode(text, 8080), Some(222));
        assert_eq!(listening_inode(text, 8081), None);
        assert_eq!(listening_inode("x\ny z\n", 1), None);
    }
}
