//! On a simulated machine: files with the rules of the kernel's, and the faults that real ones have.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use super::*;

const ROOT: &str = "/machine";

#[derive(Default)]
struct State {
    files: BTreeMap<PathBuf, String>,
    /// What was written, by name of policy and file.
    writes: Vec<(String, String)>,
    /// errno of a write to a file of this name.
    refused: BTreeMap<&'static str, i32>,
    /// The frequency that the processor keeps, in spite of all settings.
    stuck_khz: Option<u64>,
}

#[derive(Clone, Default)]
struct Machine(Arc<Mutex<State>>);

impl Machine {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    fn path(policy: u32, name: &str) -> PathBuf {
        Path::new(ROOT)
            .join(POLICIES)
            .join(format!("policy{policy}"))
            .join(name)
    }

    fn has(&self, policy: u32, name: &str) -> String {
        self.state().files[&Self::path(policy, name)].clone()
    }

    fn add(&self, policy: u32, files: &[(&str, &str)]) {
        for (name, text) in files {
            self.state()
                .files
                .insert(Self::path(policy, name), (*text).to_owned());
        }
    }

    /// 19 steps from 200 MHz to 2 GHz, as the board of the paper has them.
    fn with_steps(policy: u32, cores: &str) -> Self {
        let machine = Self::default();
        machine.add_steps(policy, cores);
        machine
    }

    fn add_steps(&self, policy: u32, cores: &str) {
        let steps: Vec<_> = (2..=20)
            .rev()
            .map(|step| (step * 100_000).to_string())
            .collect();
        self.add(
            policy,
            &[
                ("affected_cpus", cores),
                (
                    "scaling_available_governors",
                    "ondemand userspace performance",
                ),
                ("scaling_available_frequencies", &steps.join(" ")),
                ("scaling_governor", "ondemand"),
                ("scaling_setspeed", "<unsupported>"),
                ("scaling_min_freq", "200000"),
                ("scaling_max_freq", "2000000"),
                ("cpuinfo_min_freq", "200000"),
                ("cpuinfo_max_freq", "2000000"),
                ("scaling_cur_freq", "900000"),
            ],
        );
    }

    /// As with intel_pstate: no table of frequencies, no governor that can be told one.
    fn without_table() -> Self {
        let machine = Self::default();
        machine.add(
            0,
            &[
                ("affected_cpus", "0"),
                ("scaling_available_governors", "performance powersave"),
                ("scaling_governor", "powersave"),
                ("scaling_setspeed", "<unsupported>"),
                ("scaling_min_freq", "800000"),
                ("scaling_max_freq", "3900000"),
                ("cpuinfo_min_freq", "400000"),
                ("cpuinfo_max_freq", "4000000"),
                ("scaling_cur_freq", "1200000"),
            ],
        );
        machine
    }

    fn open(&self, cores: &[u32], saved: &Path) -> Result<Cpufreq, SavedError> {
        Cpufreq::open(
            Box::new(self.clone()),
            Path::new(ROOT),
            cores,
            saved,
            lock(),
        )
    }
}

impl Files for Machine {
    fn read(&self, path: &Path) -> std::io::Result<String> {
        let found = self.state().files.get(path).cloned();
        found.ok_or_else(|| std::io::Error::from_raw_os_error(2))
    }

    fn write(&self, path: &Path, text: &str) -> std::io::Result<()> {
        let error = std::io::Error::from_raw_os_error;
        let mut state = self.state();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let folder = path.parent().unwrap().to_owned();
        if !state.files.contains_key(path) {
            return Err(error(2));
        }
        if let Some(errno) = state.refused.get(name.as_str()) {
            return Err(error(*errno));
        }
        let number =
            |state: &State, name: &str| state.files[&folder.join(name)].parse::<u64>().unwrap();
        match name.as_str() {
            "scaling_governor" => {
                let told = if text == "userspace" {
                    "900000"
                } else {
                    "<unsupported>"
                };
                state
                    .files
                    .insert(folder.join("scaling_setspeed"), told.to_owned());
            }
            "scaling_setspeed" if state.files[path].starts_with('<') => return Err(error(22)),
            "scaling_min_freq"
                if text.parse::<u64>().unwrap() > number(&state, "scaling_max_freq") =>
            {
                return Err(error(22));
            }
            "scaling_max_freq"
                if text.parse::<u64>().unwrap() < number(&state, "scaling_min_freq") =>
            {
                return Err(error(22));
            }
            _ => {}
        }
        state.files.insert(path.to_owned(), text.to_owned());
        if name != "scaling_governor" {
            let khz = state
                .stuck_khz
                .map_or(text.to_owned(), |khz| khz.to_string());
            state.files.insert(folder.join("scaling_cur_freq"), khz);
        }
        let policy = folder.file_name().unwrap().to_str().unwrap();
        state
            .writes
            .push((format!("{policy}/{name}"), text.to_owned()));
        Ok(())
    }

    fn list(&self, path: &Path) -> std::io::Result<Vec<String>> {
        let state = self.state();
        let mut names: Vec<_> = state
            .files
            .keys()
            .filter_map(|file| file.strip_prefix(path).ok()?.components().next())
            .map(|part| part.as_os_str().to_str().unwrap().to_owned())
            .collect();
        names.dedup();
        if names.is_empty() {
            return Err(std::io::Error::from_raw_os_error(2));
        }
        Ok(names)
    }

    fn make(&self, _: &Path) -> std::io::Result<()> {
        Err(std::io::Error::from_raw_os_error(1))
    }

    fn remove(&self, _: &Path) -> std::io::Result<()> {
        Err(std::io::Error::from_raw_os_error(1))
    }
}

/// Makes a lock that no other test uses: simulated machines have no folder of their own for it.
fn lock() -> Lock {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let name = format!("keel-cpufreq-lock-{}-{number}", std::process::id());
    let root = std::env::temp_dir().join(name);
    std::fs::create_dir(&root).unwrap();
    let lock = Lock::take(&root, Path::new("/none")).unwrap();
    std::fs::remove_dir_all(&root).unwrap();
    lock
}

/// A place for the saved settings, which is removed when the test ends.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let name = format!("keel-cpufreq-{name}-{}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn speeds_become_steps_and_settings_are_restored() {
    let (machine, place) = (Machine::with_steps(0, "0 1"), Place::new("steps"));
    machine.add_steps(4, "4 5");
    let before = machine.state().files.clone();
    let mut actuator = machine.open(&[1], &place.0).unwrap();
    assert!((actuator.step() - 0.05).abs() < 1e-9);
    assert_eq!(machine.state().writes, [], "nothing before the first speed");
    assert!(!place.0.exists());
    for (asked, khz) in [
        (1.0, 2_000_000),
        (0.51, 1_000_000),
        (0.53, 1_100_000),
        (0.01, 200_000),
    ] {
        let applied = actuator.set(asked).unwrap();
        assert!(applied.is_obeyed, "{asked}");
        assert!(
            (applied.speed - khz as f64 / 2e6).abs() < 1e-9,
            "{asked} {applied:?}"
        );
        assert_eq!(machine.has(0, "scaling_setspeed"), khz.to_string());
    }
    assert!(place.0.exists());
    assert_eq!(machine.has(0, "scaling_governor"), "userspace");
    for wrong in [0.0, -0.5, 1.01, f64::NAN] {
        assert_eq!(actuator.set(wrong), Err(ActuatorError::Speed));
    }
    actuator.restore().unwrap();
    actuator.restore().unwrap();
    assert!(!place.0.exists());
    let mut after = machine.state().files.clone();
    // What it runs at is not a setting.
    after.insert(Machine::path(0, "scaling_cur_freq"), "900000".to_owned());
    assert_eq!(after, before);
}

#[test]
fn without_a_governor_to_be_told_the_range_is_closed_in_the_right_order() {
    let (machine, place) = (Machine::without_table(), Place::new("range"));
    let mut actuator = machine.open(&[0], &place.0).unwrap();
    for speed in [0.3, 0.9, 0.5, 1.0, 0.05] {
        let applied = actuator.set(speed).unwrap();
        assert!(applied.is_obeyed);
        assert!(
            (applied.speed - f64::max(speed, 0.1)).abs() < 1e-6,
            "{speed} {applied:?}"
        );
        assert_eq!(
            machine.has(0, "scaling_min_freq"),
            machine.has(0, "scaling_max_freq")
        );
    }
    drop(actuator);
    assert_eq!(machine.has(0, "scaling_min_freq"), "800000");
    assert_eq!(machine.has(0, "scaling_max_freq"), "3900000");
    assert_eq!(machine.has(0, "scaling_governor"), "powersave");
    assert!(!place.0.exists());
}

#[test]
fn settings_left_by_a_kill_are_restored_by_the_next_start() {
    let (machine, place) = (Machine::without_table(), Place::new("kill"));
    let mut killed = machine.open(&[0], &place.0).unwrap();
    killed.set(0.2).unwrap();
    std::mem::forget(killed);
    assert_eq!(machine.has(0, "scaling_max_freq"), "800000");
    let next = machine.open(&[0], &place.0).unwrap();
    assert_eq!(machine.has(0, "scaling_max_freq"), "3900000");
    assert_eq!(machine.has(0, "scaling_min_freq"), "800000");
    assert!(!place.0.exists());
    drop(next);
    // If the settings of a killed program cannot be read, no values are guessed.
    std::fs::write(&place.0, "evenkeel settings 2\nroot\t/machine\nend 0\n").unwrap();
    assert!(matches!(
        machine.open(&[0], &place.0),
        Err(SavedError::Damaged { .. })
    ));
}

#[test]
fn settings_left_by_another_program_are_not_taken_for_the_original_ones() {
    let machine = Machine::with_steps(0, "0");
    let (first, second) = (Place::new("first"), Place::new("second"));
    let lock_folder = Place::new("lock");
    let root = lock_folder.0.clone();
    std::fs::create_dir_all(&root).unwrap();
    // As a program notes it that is then killed, which releases its lock.
    drop(Lock::take(&root, &first.0).unwrap());
    let mut killed = machine.open(&[0], &first.0).unwrap();
    killed.set(0.2).unwrap();
    std::mem::forget(killed);
    let open = || {
        let lock = Lock::take(&root, &second.0).unwrap();
        let files = Box::new(machine.clone());
        Cpufreq::open(files, Path::new(ROOT), &[0], &second.0, lock)
    };
    machine.state().refused.insert("scaling_governor", 30);
    let error = open().unwrap_err();
    let is_named = |saved: &Path| saved == first.0;
    assert!(
        matches!(&error, SavedError::Setting(ActuatorError::NotPutBack { saved, .. }) if is_named(saved)),
        "{error}"
    );
    assert!(first.0.exists());
    machine.state().refused.clear();
    let mut next = open().unwrap();
    assert_eq!(machine.has(0, "scaling_governor"), "ondemand");
    assert!(!first.0.exists());
    next.set(0.5).unwrap();
    drop(next);
    assert_eq!(machine.has(0, "scaling_governor"), "ondemand");
    assert!(!second.0.exists());
    std::fs::remove_dir_all(&root).unwrap();
}

#[test]
fn settings_from_before_a_boot_are_not_restored() {
    let (machine, place) = (Machine::without_table(), Place::new("boot"));
    let boot = Path::new(ROOT).join("proc/sys/kernel/random/boot_id");
    let started_as = |id: &str| {
        machine
            .state()
            .files
            .insert(boot.clone(), format!("{id}\n"))
    };
    started_as("first");
    let mut killed = machine.open(&[0], &place.0).unwrap();
    killed.set(0.2).unwrap();
    std::mem::forget(killed);
    // In the same start it is.
    drop(machine.open(&[0], &place.0).unwrap());
    assert_eq!(machine.has(0, "scaling_max_freq"), "3900000");
    let mut killed = machine.open(&[0], &place.0).unwrap();
    killed.set(0.2).unwrap();
    std::mem::forget(killed);
    started_as("second");
    machine.add(0, &[("scaling_max_freq", "2500000")]);
    let mut next = machine.open(&[0], &place.0).unwrap();
    assert_eq!(machine.has(0, "scaling_max_freq"), "2500000");
    assert!(!place.0.exists());
    next.set(0.5).unwrap();
    drop(next);
    assert_eq!(machine.has(0, "scaling_max_freq"), "2500000");
}

#[test]
fn settings_without_their_files_are_restored_by_a_later_start() {
    let (machine, place) = (Machine::with_steps(0, "0"), Place::new("vanished"));
    let before = machine.has(0, "scaling_governor");
    let mut actuator = machine.open(&[0], &place.0).unwrap();
    actuator.set(0.5).unwrap();
    let all = std::mem::take(&mut machine.state().files);
    let said = actuator.restore().unwrap_err().to_string();
    assert!(said.contains("write ondemand to "), "{said}");
    assert!(
        said.contains("scaling_governor") && !said.contains('\n'),
        "{said}"
    );
    drop(actuator);
    assert!(place.0.exists(), "the next start has to know");
    machine.state().files = all;
    assert_eq!(machine.has(0, "scaling_governor"), "userspace");
    drop(machine.open(&[0], &place.0).unwrap());
    assert_eq!(machine.has(0, "scaling_governor"), before);
    assert!(!place.0.exists());
}

#[test]
fn a_policy_that_comes_again_is_driven_and_put_back() {
    let (machine, place) = (Machine::with_steps(0, "0"), Place::new("again"));
    let all = machine.state().files.clone();
    let mut actuator = machine.open(&[0], &place.0).unwrap();
    actuator.set(0.5).unwrap();
    machine.state().files.clear();
    assert!(actuator.set(0.4).is_err());
    // As its driver begins: with the original governor.
    machine.state().files = all;
    assert!(actuator.set(0.4).unwrap().is_obeyed);
    assert_eq!(machine.has(0, "scaling_governor"), "userspace");
    actuator.restore().unwrap();
    assert_eq!(machine.has(0, "scaling_governor"), "ondemand");
    assert!(!place.0.exists());
}

#[test]
fn settings_of_a_policy_that_is_gone_stay_saved_while_another_is_driven() {
    let (machine, place) = (Machine::with_steps(0, "0"), Place::new("gone"));
    machine.add_steps(4, "4");
    let mut killed = machine.open(&[0, 4], &place.0).unwrap();
    killed.set(0.5).unwrap();
    std::mem::forget(killed);
    let gone = |path: &PathBuf| path.to_str().unwrap().contains("policy4");
    let all = machine.state().files.clone();
    machine.state().files.retain(|path, _| !gone(path));
    let mut next = machine.open(&[0], &place.0).unwrap();
    assert_eq!(machine.has(0, "scaling_governor"), "ondemand");
    let kept = || std::fs::read_to_string(&place.0).unwrap();
    assert!(kept().contains("policy4") && !kept().contains("policy0"));
    next.set(0.3).unwrap();
    assert!(kept().contains("policy4") && kept().contains("policy0"));
    next.restore().unwrap();
    assert!(kept().contains("policy4") && !kept().contains("policy0"));
    drop(next);
    // Switched on again.
    let back = all.into_iter().filter(|(path, _)| gone(path));
    machine.state().files.extend(back);
    assert_eq!(machine.has(4, "scaling_governor"), "userspace");
    drop(machine.open(&[0], &place.0).unwrap());
    assert_eq!(machine.has(4, "scaling_governor"), "ondemand");
    assert!(!place.0.exists());
}

#[test]
fn settings_that_cannot_be_restored_are_not_taken_for_the_original_ones() {
    let (machine, place) = (Machine::with_steps(0, "0"), Place::new("kept"));
    let mut killed = machine.open(&[0], &place.0).unwrap();
    killed.set(0.5).unwrap();
    std::mem::forget(killed);
    machine.state().refused.insert("scaling_governor", 30);
    assert!(matches!(
        machine.open(&[0], &place.0),
        Err(SavedError::Setting(ActuatorError::NotPutBack { .. }))
    ));
    assert!(place.0.exists());
    machine.state().refused.clear();
    drop(machine.open(&[0], &place.0).unwrap());
    assert_eq!(machine.has(0, "scaling_governor"), "ondemand");
}

#[test]
fn a_file_that_others_may_write_is_not_believed() {
    use std::os::unix::fs::PermissionsExt;
    let (machine, place) = (Machine::with_steps(0, "0"), Place::new("others"));
    let mut killed = machine.open(&[0], &place.0).unwrap();
    killed.set(0.5).unwrap();
    std::mem::forget(killed);
    let mode = |bits| std::fs::set_permissions(&place.0, PermissionsExt::from_mode(bits)).unwrap();
    mode(0o666);
    assert!(Saved::looks_like_one(&place.0), "it is reported");
    assert!(matches!(
        machine.open(&[0], &place.0),
        Err(SavedError::Untrusted { .. })
    ));
    mode(0o600);
    let real = place.0.with_extension("real");
    std::fs::rename(&place.0, &real).unwrap();
    std::os::unix::fs::symlink(&real, &place.0).unwrap();
    assert!(matches!(
        machine.open(&[0], &place.0),
        Err(SavedError::Untrusted { .. })
    ));
    std::fs::rename(&real, &place.0).unwrap();
    drop(machine.open(&[0], &place.0).unwrap());
    assert_eq!(machine.has(0, "scaling_governor"), "ondemand");
}

#[test]
fn a_panic_restores_the_settings() {
    let (machine, place) = (Machine::with_steps(0, "0"), Place::new("panic"));
    let mut actuator = machine.open(&[0], &place.0).unwrap();
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
        actuator.set(0.3).unwrap();
        std::panic::resume_unwind(Box::new("as a program may"));
    }));
    assert!(ended.is_err());
    assert_eq!(machine.has(0, "scaling_governor"), "ondemand");
}

#[test]
fn machines_that_refuse_say_which_file() {
    for (name, errno) in [
        ("scaling_governor", 30),
        ("scaling_setspeed", 16),
        ("scaling_governor", 13),
    ] {
        let (machine, place) = (
            Machine::with_steps(0, "0"),
            Place::new(&format!("refused-{name}-{errno}")),
        );
        machine.state().refused.insert(name, errno);
        let mut actuator = machine.open(&[0], &place.0).unwrap();
        let Err(ActuatorError::File {
            path, errno: found, ..
        }) = actuator.set(0.5)
        else {
            panic!("{name} was not refused");
        };
        assert_eq!((path, found), (Machine::path(0, name), errno));
        machine.state().refused.clear();
        drop(actuator);
        assert_eq!(machine.has(0, "scaling_governor"), "ondemand", "{name}");
    }
}

#[test]
fn a_processor_that_does_not_obey_or_is_gone_is_reported() {
    let (machine, place) = (Machine::with_steps(0, "0"), Place::new("disobeys"));
    let mut actuator = machine.open(&[0], &place.0).unwrap();
    machine.state().stuck_khz = Some(1_600_000);
    let applied = actuator.set(0.3).unwrap();
    assert!(
        !applied.is_obeyed && (applied.speed - 0.8).abs() < 1e-9,
        "{applied:?}"
    );
    machine.state().files.clear();
    assert!(matches!(
        actuator.set(0.4),
        Err(ActuatorError::File { errno: 2, .. })
    ));
    assert!(matches!(
        actuator.restore(),
        Err(ActuatorError::NotPutBack { .. })
    ));
    assert!(matches!(
        machine.open(&[0], &place.0),
        Err(SavedError::Setting(ActuatorError::Missing { .. }))
    ));
    std::mem::forget(actuator);
    std::fs::remove_file(&place.0).unwrap();
    let other = Machine::with_steps(0, "0");
    assert!(matches!(
        other.open(&[7], &place.0),
        Err(SavedError::Setting(ActuatorError::Missing { .. }))
    ));
    other.add(0, &[("cpuinfo_max_freq", "fast")]);
    assert!(matches!(
        other.open(&[0], &place.0),
        Err(SavedError::Setting(ActuatorError::NoNumber { .. }))
    ));
}
