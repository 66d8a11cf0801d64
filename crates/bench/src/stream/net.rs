//! Two separate networks, joined by one line: the server is on one side and the device on the other. The networks have
//! no name, are invisible to other processes, and end with the program.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::sys;
use crate::store::tool;

/// The device's address.
pub(crate) const DEVICE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
/// The server's.
pub(crate) const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);

/// The interface name at both ends of the line.
const WIRE: &str = "wire";

/// Queue length at both ends before packets are dropped, as time.
const QUEUE: &str = "50ms";

/// Denominator of the loss rate that is given to the kernel.
const LOSS_OF: u32 = 10_000_000;

/// The rate of the line, in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rate {
    pub(crate) mbit: u32,
}

impl Rate {
    pub(crate) const SLOW: Self = Self { mbit: 100 };
    pub(crate) const FAST: Self = Self { mbit: 1000 };

    /// Returns the rate in bytes per second.
    pub(crate) fn bytes_per_s(self) -> f64 {
        f64::from(self.mbit) * 1e6 / 8.0
    }

    /// Returns the burst size in bytes: what the line carries in 1 ms, but at least 16 KiB.
    fn burst_bytes(self) -> u32 {
        (self.mbit * 125).max(16 << 10)
    }
}

/// The line between the two networks.
pub(crate) struct Line {
    device: File,
    server: File,
}

/// Bytes of packet headers: Ethernet, IP, and TCP with its time stamps.
pub(crate) const HEADER_BYTES: u64 = 14 + 20 + 32;

/// Traffic on the line since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    /// Includes the headers of all packets, also those of Ethernet.
    pub(crate) to_device_bytes: u64,
    pub(crate) to_server_bytes: u64,
    pub(crate) to_device_packets: u64,
    pub(crate) to_server_packets: u64,
}

impl Traffic {
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            to_device_bytes: self.to_device_bytes - before.to_device_bytes,
            to_server_bytes: self.to_server_bytes - before.to_server_bytes,
            to_device_packets: self.to_device_packets - before.to_device_packets,
            to_server_packets: self.to_server_packets - before.to_server_packets,
        }
    }

    /// Returns the bytes of both directions.
    pub(crate) fn bytes(self) -> u64 {
        self.to_device_bytes + self.to_server_bytes
    }
}

impl Line {
    /// Creates two networks and joins them.
    ///
    /// # Errors
    /// One line that says what is missing: permission, or a tool.
    pub(crate) fn create() -> Result<Self, String> {
        let network = || sys::new_network().map_err(|error| format!("a network: {error}"));
        let line = Self {
            device: network()?,
            server: network()?,
        };
        let other = format!(
            "/proc/{}/fd/{}",
            std::process::id(),
            line.server.as_raw_fd()
        );
        line.at_device(
            "ip",
            &[
                "link", "add", WIRE, "type", "veth", "peer", "name", WIRE, "netns", &other,
            ],
        )?;
        for (network, address) in [(&line.device, DEVICE), (&line.server, SERVER)] {
            run(
                network,
                "ip",
                &["address", "add", &format!("{address}/24"), "dev", WIRE],
            )?;
            for link in [WIRE, "lo"] {
                run(network, "ip", &["link", "set", link, "up"])?;
            }
            // The default of most systems; if it is the only one, it cannot be chosen, so an error is ignored.
            let choose = || std::fs::write("/proc/sys/net/ipv4/tcp_congestion_control", b"cubic");
            let _ = inside(network, choose);
        }
        Ok(line)
    }

    /// Limits both directions; replaces an earlier limit.
    ///
    /// # Errors
    /// One line with the tool's reason.
    pub(crate) fn limit(&self, rate: Rate) -> Result<(), String> {
        let (speed, burst) = (format!("{}mbit", rate.mbit), rate.burst_bytes().to_string());
        for network in [&self.device, &self.server] {
            let arguments = [
                "qdisc", "replace", "dev", WIRE, "root", "tbf", "rate", &speed, "burst", &burst,
                "latency", QUEUE,
            ];
            run(network, "tc", &arguments)?;
        }
        Ok(())
    }

    /// Drops `percent` percent of the packets at random, in both directions; 0: none.
    ///
    /// # Errors
    /// One line with the tool's reason.
    pub(crate) fn lose(&self, percent: f64) -> Result<(), String> {
        let lost = (percent / 100.0 * f64::from(LOSS_OF)).round() as u32;
        for network in [&self.device, &self.server] {
            // Deleting a missing table fails but adding it twice does not, so add it before deleting it.
            let mut script = "add table ip keel_bench\ndelete table ip keel_bench\n".to_owned();
            if lost > 0 {
                script += &format!(
                    "table ip keel_bench {{\n chain lost {{\n  type filter hook input priority 0;\n  \
                     iif \"{WIRE}\" numgen random mod {LOSS_OF} < {lost} counter drop\n }}\n}}\n"
                );
            }
            run(network, "nft", &[&script])?;
        }
        Ok(())
    }

    /// Returns the traffic on the line so far.
    ///
    /// # Errors
    /// One line with the tool's reason.
    pub(crate) fn traffic(&self) -> Result<Traffic, String> {
        let (to_server_bytes, to_server_packets) = sent(&self.device)?;
        let (to_device_bytes, to_device_packets) = sent(&self.server)?;
        Ok(Traffic {
            to_device_bytes,
            to_server_bytes,
            to_device_packets,
            to_server_packets,
        })
    }

    /// Returns the network of the device.
    pub(crate) fn device(&self) -> &File {
        &self.device
    }

    /// Returns the network of the server.
    pub(crate) fn server(&self) -> &File {
        &self.server
    }

    fn at_device(&self, program: &str, arguments: &[&str]) -> Result<String, String> {
        run(&self.device, program, arguments)
    }
}

/// Runs a function in a network, on its own thread.
///
/// # Errors
/// One line: the network cannot be entered.
pub(crate) fn inside<T: Send>(
    network: &File,
    work: impl FnOnce() -> T + Send,
) -> Result<T, String> {
    let done = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            sys::enter_network(network).map_err(|error| format!("a network: {error}"))?;
            Ok(work())
        });
        thread.join()
    });
    done.unwrap_or_else(|_| Err("work in a network has ended early".to_owned()))
}

/// Returns an address on the server's side.
pub(crate) fn at_server(port: u16) -> SocketAddr {
    (SERVER, port).into()
}

/// Returns the programs that the line needs but that are missing.
pub(crate) fn lacking() -> Vec<&'static str> {
    let is_there = |name: &&str| {
        ["/usr/sbin", "/sbin", "/usr/bin", "/bin"]
            .iter()
            .any(|folder| Path::new(folder).join(name).exists())
    };
    ["ip", "tc", "nft"]
        .into_iter()
        .filter(|name| !is_there(name))
        .collect()
}

fn run(network: &File, program: &str, arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new(program);
    sys::in_network(command.args(arguments), Some(network));
    tool(&mut command)
}

/// Returns the bytes and packets that have passed the limit of one end. Large packets count as the small ones that they
/// are split into.
fn sent(network: &File) -> Result<(u64, u64), String> {
    let text = run(network, "tc", &["-s", "-j", "qdisc", "show", "dev", WIRE])?;
    let limits: Value = serde_json::from_str(&text).map_err(|error| format!("tc: {error}"))?;
    let limit = limits
        .as_array()
        .and_then(|limits| limits.iter().find(|limit| limit["kind"] == "tbf"));
    let figure = |name: &str| limit.and_then(|limit| limit[name].as_u64());
    figure("bytes")
        .zip(figure("packets"))
        .ok_or_else(|| "the line has no limit".to_owned())
}
