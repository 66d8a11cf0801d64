//! The command line of each MPI's launcher. Debian's specific names for the launchers of MPICH and Open MPI are tried
//! before the common names, which may belong to the other MPI.

use super::hosts::{HostEntry, ranks_of};
use crate::Error;
use crate::error::excerpt;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::path::Path;

/// An implementation of MPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// MPICH, with the launcher hydra.
    Mpich,
    /// Open MPI.
    OpenMpi,
}

impl Library {
    /// Identifies the implementation from the version text of its library or launcher.
    #[must_use]
    pub fn of(text: &str) -> Option<Self> {
        let is = |word: &str| text.contains(word);
        if is("Open MPI") || is("OpenRTE") {
            Some(Self::OpenMpi)
        } else if is("MPICH") || is("HYDRA") || is("Hydra") {
            Some(Self::Mpich)
        } else {
            None
        }
    }

    /// Returns its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Mpich => "MPICH",
            Self::OpenMpi => "Open MPI",
        }
    }

    /// Returns names of its launcher, the most specific first.
    #[must_use]
    pub fn launchers(self) -> &'static [&'static str] {
        match self {
            Self::Mpich => &["mpiexec.hydra", "mpiexec.mpich", "mpiexec"],
            Self::OpenMpi => &["mpirun.openmpi", "mpirun", "mpiexec"],
        }
    }
}

/// An address of this machine and its network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    address: Ipv4Addr,
    bits: u32,
}

impl Address {
    /// Reads `10.77.0.254/24`.
    ///
    /// # Errors
    /// The text has another form.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let found = text.split_once('/').and_then(|(address, bits)| {
            let bits = bits.parse().ok().filter(|bits| (1..=32).contains(bits))?;
            Some(Self {
                address: address.parse().ok()?,
                bits,
            })
        });
        found.ok_or_else(|| {
            let wrong = format!("`{}` is not of the form 10.77.0.254/24", excerpt(text));
            Error::invalid("address", wrong)
        })
    }

    /// Returns the address without its network.
    #[must_use]
    pub fn address(self) -> Ipv4Addr {
        self.address
    }

    /// Returns the network alone, as `10.77.0.0/24`.
    #[must_use]
    pub fn network(self) -> String {
        let mask = u32::MAX << (32 - self.bits);
        let network = Ipv4Addr::from(u32::from(self.address) & mask);
        format!("{network}/{}", self.bits)
    }
}

/// Returns whether launchers can take a text as the name of an interface.
#[must_use]
pub fn is_interface_name(name: &str) -> bool {
    let is_of_name = |letter: char| letter.is_ascii_alphanumeric() || "-_.@".contains(letter);
    !name.is_empty() && !name.starts_with('-') && name.chars().all(is_of_name)
}

/// How ranks are started.
#[derive(Clone, Debug)]
pub struct Launch<'a> {
    /// The MPI implementation.
    pub library: Library,
    /// The boards.
    pub hosts: &'a [HostEntry],
    /// The file that holds [`hosts_text`](Self::hosts_text).
    pub hosts_file: &'a Path,
    /// Replacement for ssh: called as `PROGRAM HOST COMMAND…`, options before the host.
    pub remote_shell: Option<&'a Path>,
    /// The address at which boards reach this machine.
    pub address: Option<Address>,
    /// The boards' network interface for messages.
    pub interface: Option<&'a str>,
    /// Whether messages go through TCP even if ranks could share memory.
    pub is_network_only: bool,
    /// Whether the launcher runs as root, which Open MPI must be told.
    pub is_root: bool,
    /// Additional arguments for the launcher.
    pub further: &'a [String],
    /// The program of each rank.
    pub program: &'a Path,
    /// Its arguments.
    pub arguments: &'a [String],
}

impl Launch<'_> {
    /// Returns the list of boards in the launcher's own form.
    #[must_use]
    pub fn hosts_text(&self) -> String {
        let mut text = String::new();
        for host in self.hosts {
            // Writing to a string does not fail.
            let _ = match self.library {
                Library::Mpich => writeln!(text, "{}:{}", host.name, host.ranks),
                Library::OpenMpi => writeln!(text, "{} slots={}", host.name, host.ranks),
            };
        }
        text
    }

    /// Returns the arguments after the launcher's name.
    #[must_use]
    pub fn arguments(&self) -> Vec<OsString> {
        let mut words: Vec<OsString> = Vec::new();
        let mut push = |new: &[&str]| words.extend(new.iter().map(OsString::from));
        let ranks = ranks_of(self.hosts).to_string();
        match self.library {
            Library::Mpich => {
                // The measuring program binds its ranks itself, in the same way for each library.
                push(&["-n", &ranks, "-bind-to", "none", "-launcher", "ssh"]);
                if let Some(address) = self.address {
                    push(&["-localhost", &address.address.to_string()]);
                }
                if self.is_network_only {
                    push(&["-genv", "UCX_TLS", "tcp,self"]);
                }
                if let Some(interface) = self.interface {
                    push(&["-genv", "UCX_NET_DEVICES", interface]);
                }
                if let Some(shell) = self.remote_shell {
                    words.push("-launcher-exec".into());
                    words.push(shell.into());
                }
                words.push("-f".into());
            }
            Library::OpenMpi => {
                if self.is_root {
                    push(&["--allow-run-as-root"]);
                }
                push(&[
                    "-n",
                    &ranks,
                    "--bind-to",
                    "none",
                    "--map-by",
                    "slot",
                    "--oversubscribe",
                ]);
                if let Some(address) = self.address {
                    push(&["--mca", "oob_tcp_if_include", &address.network()]);
                }
                if self.is_network_only {
                    push(&["--mca", "pml", "ob1", "--mca", "btl", "tcp,self"]);
                }
                if let Some(interface) = self.interface {
                    push(&["--mca", "btl_tcp_if_include", interface]);
                }
                if let Some(shell) = self.remote_shell {
                    push(&["--mca", "plm_rsh_agent"]);
                    words.push(shell.into());
                }
                words.push("--hostfile".into());
            }
        }
        words.push(self.hosts_file.into());
        words.extend(self.further.iter().map(OsString::from));
        words.push(self.program.into());
        words.extend(self.arguments.iter().map(OsString::from));
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(library: Library, is_far: bool) -> (String, String) {
        let hosts = [("b1", 1), ("b2", 2)].map(|(name, ranks)| HostEntry {
            name: name.to_owned(),
            ranks,
        });
        let further = ["-verbose".to_owned()];
        let arguments = ["measure".to_owned(), "{\"a\": 1}".to_owned()];
        let launch = Launch {
            library,
            hosts: &hosts,
            hosts_file: Path::new("hosts"),
            remote_shell: is_far.then_some(Path::new("/bin/nsrsh")),
            address: is_far.then(|| Address::parse("10.77.0.254/24").expect("one")),
            interface: is_far.then_some("eth0"),
            is_network_only: is_far,
            is_root: is_far,
            further: &further,
            program: Path::new("/bin/keel-mpi"),
            arguments: &arguments,
        };
        let text: Vec<_> = launch
            .arguments()
            .iter()
            .map(|word| word.to_string_lossy().into_owned())
            .collect();
        (text.join(" "), launch.hosts_text())
    }

    #[test]
    fn each_library_gets_its_own_words() {
        let (text, hosts) = words(Library::Mpich, false);
        assert_eq!(
            text,
            "-n 3 -bind-to none -launcher ssh -f hosts -verbose /bin/keel-mpi measure {\"a\": 1}"
        );
        assert_eq!(hosts, "b1:1\nb2:2\n");
        let (text, _) = words(Library::Mpich, true);
        assert_eq!(
            text,
            "-n 3 -bind-to none -launcher ssh -localhost 10.77.0.254 -genv UCX_TLS tcp,self -genv UCX_NET_DEVICES eth0 \
             -launcher-exec /bin/nsrsh -f hosts -verbose /bin/keel-mpi measure {\"a\": 1}"
        );
        let (text, hosts) = words(Library::OpenMpi, true);
        assert_eq!(
            text,
            "--allow-run-as-root -n 3 --bind-to none --map-by slot --oversubscribe --mca oob_tcp_if_include \
             10.77.0.0/24 --mca pml ob1 --mca btl tcp,self --mca btl_tcp_if_include eth0 --mca plm_rsh_agent \
             /bin/nsrsh --hostfile hosts -verbose /bin/keel-mpi measure {\"a\": 1}"
        );
        assert_eq!(hosts, "b1 slots=1\nb2 slots=2\n");
    }

    #[test]
    fn libraries_are_known_by_their_version_texts() {
        for (text, library) in [
            (
                "Open MPI v4.1.4, package: Debian OpenMPI",
                Some(Library::OpenMpi),
            ),
            ("mpirun (Open MPI) 4.1.4", Some(Library::OpenMpi)),
            ("MPICH Version:      4.0.2", Some(Library::Mpich)),
            (
                "HYDRA build details:\n    Version: 4.0.2",
                Some(Library::Mpich),
            ),
            ("Intel(R) MPI Library", None),
        ] {
            assert_eq!(Library::of(text), library, "{text}");
        }
    }

    #[test]
    fn addresses_have_a_network() {
        assert_eq!(
            Address::parse("10.77.3.9/16").map(Address::network),
            Ok("10.77.0.0/16".to_owned())
        );
        assert_eq!(
            Address::parse("10.0.0.1/32").map(Address::network),
            Ok("10.0.0.1/32".to_owned())
        );
        for wrong in [
            "10.0.0.1",
            "10.0.0.1/0",
            "10.0.0.1/33",
            "x/24",
            "--x/24",
            "",
        ] {
            assert!(Address::parse(wrong).is_err(), "{wrong}");
        }
    }
}
