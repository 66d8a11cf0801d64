//! The ranks, and the report of each rank before anything is measured.

use crate::core;
use crate::report::{Failure, say};
use base::clock::{Clock, SystemClock};
use cluster::measure::{Event, Plan, RankFacts};
use cluster::power::Root;
use cluster::results::{Host, Known, Transport};
use mpi::collective::SystemOperation;
use mpi::datatype::PartitionMut;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, CommunicatorCollectives, Root as _};
use serde_json::json;

/// Maximum size of a rank's report, in bytes.
const FACTS_BYTES_MAX: usize = 16 << 10;

/// The library that this program is linked with, in one line.
///
/// # Errors
/// The version is not readable text.
pub(crate) fn library() -> Result<String, String> {
    let text = mpi::environment::library_version()
        .map_err(|_| "the MPI library has no readable version".to_owned())?;
    // MPICH reports a whole page: name, version, date and configuration.
    let lines: Vec<String> = text
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .filter(|line| !line.is_empty())
        .collect();
    let device = lines.iter().find(|line| line.starts_with("MPICH Device:"));
    let first = lines.first().ok_or("the MPI library has no version")?;
    let all = device.map_or(first.clone(), |device| format!("{first}, {device}"));
    Ok(all
        .chars()
        .filter(|letter| !letter.is_control())
        .take(200)
        .collect())
}

/// The ranks of this run.
pub(crate) struct World<'a> {
    pub(crate) all: &'a SimpleCommunicator,
    pub(crate) rank: u32,
    pub(crate) ranks: u32,
    /// The hosts of every rank, in order.
    names: Vec<String>,
    pub(crate) transport: Transport,
}

impl<'a> World<'a> {
    /// Lets each rank report its host and library, binds it to its core, and reports all ranks on standard output.
    ///
    /// # Errors
    /// Ranks that have not found each other, or have different libraries.
    pub(crate) fn gather(all: &'a SimpleCommunicator, plan: &Plan) -> Result<Self, Failure> {
        let (rank, ranks) = (all.rank() as u32, all.size() as u32);
        if ranks != plan.ranks {
            let why = format!(
                "rank {rank} finds {ranks} ranks instead of {}: the launcher is of another MPI than keel-mpi",
                plan.ranks
            );
            // Ranks that have not found each other each report it themselves.
            return Err(Failure {
                why,
                host: None,
                is_said_here: true,
            });
        }
        let clock = SystemClock::new();
        let boot: String = clock
            .boot_id()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let host = cluster::host::describe(&Root::new("/"), 0);
        let said = library();
        let facts = json!({
            "host": host,
            "boot": boot,
            "process": std::process::id(),
            "library": said.clone().unwrap_or_else(|why| why),
        });
        let texts = all_texts(all, &facts.to_string(), FACTS_BYTES_MAX);
        let mut found = Vec::new();
        for (rank, text) in (0..).zip(&texts) {
            let one = Facts::parse(text);
            found.push(one.ok_or_else(|| {
                failure(
                    all,
                    format!("rank {rank} says nothing readable of itself"),
                    None,
                )
            })?);
        }
        let first = &found[0];
        if let Some((other, facts)) = found
            .iter()
            .enumerate()
            .find(|(_, facts)| facts.library != first.library)
        {
            let why = format!(
                "rank {other} on {} has {}, rank 0 has {}: install one MPI on all boards",
                facts.host.name, facts.library, first.library
            );
            return Err(failure(all, why, Some(facts.host.name.clone())));
        }
        // The substitute for an unknown boot number begins with zeros, and may differ between ranks of one board.
        let is_told = |boot: &str| !boot.starts_with("0000000000000000");
        let is_other = |one: &str, other: &str| is_told(one) && is_told(other) && one != other;
        // Boards are distinguished by their names: two boards with one name would count as one, without a network
        // between them.
        let twin = found.iter().enumerate().find_map(|(rank, facts)| {
            let is_twin = |other: &&Facts| {
                other.host.name == facts.host.name && is_other(&other.boot, &facts.boot)
            };
            Some((rank, facts, found[..rank].iter().find(is_twin)?))
        });
        if let Some((rank, facts, _)) = twin {
            let name = &facts.host.name;
            let why = format!(
                "rank {rank} and one before it are on two boards that are both called {name}: give each a host name of \
                 its own"
            );
            return Err(failure(all, why, Some(name.clone())));
        }
        // Emulated boards share a kernel, and with it its cores.
        let place = found[..rank as usize]
            .iter()
            .filter(|facts| facts.boot == boot)
            .count();
        let sharing = found.iter().filter(|facts| facts.boot == boot).count();
        let bound = bind(plan.pin, place, sharing);
        let bound = serde_json::to_string(&bound).unwrap_or_default();
        let cores: Vec<Known<u32>> = all_texts(all, &bound, FACTS_BYTES_MAX)
            .iter()
            .map(|text| {
                serde_json::from_str(text).unwrap_or(Known::Unavailable("not said".to_owned()))
            })
            .collect();
        let mut hosts: Vec<Host> = Vec::new();
        for (facts, core) in found.iter().zip(&cores) {
            let host = match hosts.iter_mut().find(|host| host.name == facts.host.name) {
                Some(host) => host,
                None => {
                    hosts.push(facts.host.clone());
                    let last = hosts.len() - 1;
                    &mut hosts[last]
                }
            };
            host.ranks += 1;
            host.pinning = match (&host.pinning, core) {
                (_, Known::Unavailable(why)) => Known::Unavailable(why.clone()),
                (Known::Value(before), Known::Value(core)) => {
                    Known::Value(short(format!("{before}, {core}")))
                }
                (Known::Unavailable(why), Known::Value(_)) if host.ranks > 1 => {
                    Known::Unavailable(why.clone())
                }
                (_, Known::Value(core)) => Known::Value(format!("ranks on cores {core}")),
            };
        }
        let transport = if hosts.len() == 1 {
            Transport::Memory
        } else {
            Transport::Network
        };
        let names = found.iter().map(|facts| facts.host.name.clone()).collect();
        if rank == 0 {
            let facts = found
                .iter()
                .zip(cores)
                .zip(0..)
                .map(|((facts, core), rank)| RankFacts {
                    rank,
                    host: facts.host.name.clone(),
                    process: facts.process,
                    core,
                    boot: facts.boot.clone(),
                    library: facts.library.clone(),
                });
            let event = Event::World {
                library: first.library.clone(),
                ranks: facts.collect(),
                hosts,
            };
            said_or_failed(say(&event))?;
        }
        Ok(Self {
            all,
            rank,
            ranks,
            names,
            transport,
        })
    }

    /// Continues if no rank has an error; otherwise every rank returns the error of the first rank that has one.
    ///
    /// # Errors
    /// That error.
    pub(crate) fn agree(&self, mine: Result<(), String>) -> Result<(), Failure> {
        let is_wrong = u8::from(mine.is_err());
        let mut any = 0_u8;
        self.all
            .all_reduce_into(&is_wrong, &mut any, SystemOperation::max());
        if any == 0 {
            return Ok(());
        }
        let texts = self.texts(mine.err().as_deref().unwrap_or_default(), FACTS_BYTES_MAX);
        let first = texts.iter().position(|text| !text.is_empty()).unwrap_or(0);
        let host = self.names[first].clone();
        let why = format!("rank {first} on {host}: {}", texts[first]);
        Err(failure(self.all, why, Some(host)))
    }

    /// The maximum over all ranks of each value, on rank 0; the other ranks get their own values back.
    pub(crate) fn greatest(&self, mine: &[f64]) -> Vec<f64> {
        let root = self.all.process_at_rank(0);
        let mut greatest = mine.to_vec();
        if self.rank == 0 {
            root.reduce_into_root(mine, &mut greatest[..], SystemOperation::max());
        } else {
            root.reduce_into(mine, SystemOperation::max());
        }
        greatest
    }

    /// The host of this rank.
    pub(crate) fn name(&self) -> &str {
        &self.names[self.rank as usize]
    }

    /// Whether no rank before this one is on the same host.
    pub(crate) fn is_first_of_host(&self) -> bool {
        !self.names[..self.rank as usize].contains(&self.names[self.rank as usize])
    }

    /// A text from each rank, on every rank, in order; a text longer than `bytes_max` is cut.
    pub(crate) fn texts(&self, text: &str, bytes_max: usize) -> Vec<String> {
        all_texts(self.all, text, bytes_max)
    }

    /// Returns the value of rank 0, on every rank.
    pub(crate) fn of_first(&self, mut value: u64) -> u64 {
        self.all.process_at_rank(0).broadcast_into(&mut value);
        value
    }
}

/// The program runs only for its reader. If no process reads the output, rank 0 ends all ranks.
///
/// # Errors
/// None: if the report fails, MPI ends all ranks.
pub(crate) fn said_or_failed(said: Result<(), String>) -> Result<(), Failure> {
    match said {
        Ok(()) => Ok(()),
        Err(error) => {
            eprintln!("keel-mpi: {error}");
            SimpleCommunicator::world().abort(1)
        }
    }
}

fn failure(all: &SimpleCommunicator, why: String, host: Option<String>) -> Failure {
    Failure {
        why,
        host,
        is_said_here: all.rank() == 0,
    }
}

struct Facts {
    host: Host,
    boot: String,
    process: u32,
    library: String,
}

impl Facts {
    fn parse(text: &str) -> Option<Self> {
        let mut value: serde_json::Value = serde_json::from_str(text).ok()?;
        let host = serde_json::from_value(value.get_mut("host")?.take()).ok()?;
        let word = |name: &str| value.get(name)?.as_str().map(str::to_owned);
        Some(Self {
            host,
            boot: word("boot")?,
            process: value.get("process")?.as_u64()?.try_into().ok()?,
            library: word("library")?,
        })
    }
}

/// A text from each rank, on every rank, in order; a text that is too long is cut.
fn all_texts(all: &SimpleCommunicator, text: &str, bytes_max: usize) -> Vec<String> {
    let bytes = &text.as_bytes()[..text.len().min(bytes_max)];
    let ranks = all.size() as usize;
    let mut counts = vec![0_i32; ranks];
    all.all_gather_into(&(bytes.len() as i32), &mut counts[..]);
    let mut places = Vec::with_capacity(ranks);
    let mut total = 0_i32;
    for count in &counts {
        places.push(total);
        total += count;
    }
    let mut together = vec![0_u8; total as usize];
    all.all_gather_varcount_into(
        bytes,
        &mut PartitionMut::new(&mut together[..], &counts[..], &places[..]),
    );
    let text = |(&place, &count): (&i32, &i32)| {
        String::from_utf8_lossy(&together[place as usize..(place + count) as usize]).into_owned()
    };
    places.iter().zip(&counts).map(text).collect()
}

/// Binds this rank, number `place` of `sharing` ranks that share a kernel.
fn bind(is_wanted: bool, place: usize, sharing: usize) -> Known<u32> {
    if !is_wanted {
        return Known::Unavailable("not asked for".to_owned());
    }
    let allowed = core::allowed();
    match allowed.get(place) {
        Some(&core) if sharing <= allowed.len() => match core::bind(core) {
            Ok(()) => Known::Value(core),
            Err(why) => Known::Unavailable(why),
        },
        _ => Known::Unavailable(format!("{sharing} ranks share {} cores", allowed.len())),
    }
}

/// Cuts a text to the length that a result file accepts.
fn short(text: String) -> String {
    if text.len() <= 200 {
        text
    } else {
        text.chars().take(196).chain("...".chars()).collect()
    }
}
