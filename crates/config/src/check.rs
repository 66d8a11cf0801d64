//! `keel config check`: checks a file, describes what the node will do with it, and warns the owner.

use super::{
    Config, HttpConfig, JobConfig, MqttVersion, Problem, RegionConfig, SubscribeConfig, directory,
    first_of, read,
};
use super::{modbus, programs, qos, sections, sharing, tls_files, user};
use command::error::{CliError, STATUS_FAILURE};
use command::output::Output;
use command::persistence;
use command::progress::bytes_text;
use ingest::intake::TagsForm;
use serde_json::json;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Permission bits of users other than owner and group.
const OTHERS: u32 = 0o007;

/// The longest commit interval, in ms, at which agents that wait 5 s for an answer get it in any case.
const AGENT_INTERVAL_MS_MAX: u32 = 2_000;

/// Checks a file and prints what it means. Returns the exit status.
///
/// # Errors
/// The file cannot be read, or has a problem; with `json`, problems are printed instead, and the exit status is 1.
pub fn check(path: &Path, json: bool) -> Result<u8, CliError> {
    let text = read(path)?;
    let origin = path.display().to_string();
    let mut output = Output::new();
    let parsed = Config::parse_all(&text, directory(path));
    if let (Ok(config), false) = (&parsed, json) {
        config.refuse_store()?;
    }
    let status = match (parsed, json) {
        (Ok(config), false) => {
            print_meaning(&config, path, &mut output)?;
            0
        }
        (Ok(config), true) => {
            let (qos, mut warnings) = qos::look(&config.qos);
            let own = config.warnings().into_iter();
            warnings.splice(0..0, own.chain(user::warnings(&config, path)));
            let summary: serde_json::Map<_, _> = config
                .summary(qos)
                .into_iter()
                .map(|(what, sentence)| (what.to_owned(), sentence.into()))
                .collect();
            let refused = config.refuse_store().err();
            let problems: Vec<_> = refused.iter().map(place_json).collect();
            output.json(&json!({
                "file": origin,
                "ok": refused.is_none(),
                "summary": summary,
                "warnings": warnings,
                "problems": problems,
            }))?;
            refused.map_or(0, |_| STATUS_FAILURE)
        }
        (Err(problems), false) => {
            // One line per problem; the caller prints the last one.
            let Some((last, others)) = problems.split_last() else {
                return Err(first_of(&problems, &origin));
            };
            for problem in others {
                eprintln!("keel: {}", problem.error(&origin));
            }
            return Err(last.error(&origin));
        }
        (Err(problems), true) => {
            let problems: Vec<_> = problems.iter().map(problem_json).collect();
            output.json(&json!({
                "file": origin,
                "ok": false,
                "warnings": [],
                "problems": problems,
            }))?;
            STATUS_FAILURE
        }
    };
    output.flush()?;
    Ok(status)
}

/// Prints what a file without problems means, and its warnings.
fn print_meaning(config: &Config, path: &Path, output: &mut Output) -> Result<(), CliError> {
    output.line(format_args!("{}: ok", path.display()))?;
    let (qos, warnings) = qos::look(&config.qos);
    for (what, sentence) in config.summary(qos) {
        output.line(format_args!("  {what:<9} {sentence}"))?;
    }
    let own = config.warnings().into_iter();
    let own = own.chain(user::warnings(config, path));
    for warning in own.chain(warnings) {
        output.line(format_args!("warning: {warning}"))?;
    }
    Ok(())
}

/// Returns the error of the store's place or size, which is checked only when all lines are right.
fn place_json(error: &CliError) -> serde_json::Value {
    json!({"line": null, "wrong": format!("store.image {error}"), "remedy": ""})
}

fn problem_json(problem: &Problem) -> serde_json::Value {
    json!({"line": problem.line, "wrong": problem.wrong, "remedy": problem.remedy})
}

impl Config {
    /// Returns what a node with this configuration does, by subject.
    fn summary(&self, qos: String) -> Vec<(&'static str, String)> {
        let mut summary = vec![
            ("store", self.store_sentence()),
            ("history", self.history_sentence()),
            ("keys", self.keys_sentence()),
            ("sources", self.sources_sentence()),
            ("commands", self.node.socket.display().to_string()),
        ];
        let tags = self.tags_sentence(TagsForm::OF_NEW_STORES);
        summary.extend(tags.map(|tags| ("tags", tags)));
        summary.extend(
            self.region
                .as_ref()
                .map(|region| ("region", region.sentence())),
        );
        summary.extend(self.http.as_ref().map(|http| ("http", http.sentence())));
        let user = self.node.user.as_ref();
        let user =
            user.map(|user| format!("{user}, as soon as the image is open and ports are taken"));
        summary.extend(user.map(|user| ("user", user)));
        summary.push(("qos", qos));
        if !self.job.is_empty() {
            let jobs: Vec<String> = self.job.iter().map(JobConfig::sentence).collect();
            summary.push(("jobs", jobs.join("; ")));
        }
        summary.extend(programs::summary(&self.mount, &self.task));
        if !self.upstream.is_empty() {
            let sentences: Vec<String> = self.upstream.iter().map(|one| one.sentence()).collect();
            summary.push(("upstream", sentences.join("; ")));
        }
        summary.extend(self.urgent.summary());
        summary
    }

    fn store_sentence(&self) -> String {
        let store = &self.store;
        let image = store.image.display();
        let size = match self.existing_bytes() {
            Some(0) => "a device".to_owned(),
            Some(bytes) => format!("{} MiB", bytes >> 20),
            None => format!("{} MiB, made at the first start", store.create_mebibytes),
        };
        let interval_ms = store.commit_interval_ms;
        format!(
            "{image}, {size}; a reading is on flash at most about {interval_ms} ms after it came"
        )
    }

    fn history_sentence(&self) -> String {
        let store = &self.store;
        let size = match store.history_mebibytes_max {
            0 => "nine tenths of the store".to_owned(),
            mebibytes => format!("{mebibytes} MiB"),
        };
        let age = match store.history_days_max {
            0 => String::new(),
            1 => " or 1 day".to_owned(),
            days => format!(" or {days} days"),
        };
        let full = match store.full_policy {
            db::FullPolicy::RejectNew => "new readings are refused",
            db::FullPolicy::DropOldest => "the oldest readings are deleted",
        };
        format!("the newest {size}{age}; if the store is full all the same, {full}")
    }

    fn keys_sentence(&self) -> String {
        let keys = &self.keys;
        let made = if keys.auto_create {
            "made by their first reading"
        } else {
            "declared ones only"
        };
        let rules = match self.key.len() {
            0 => "no declaration".to_owned(),
            1 => "1 declaration".to_owned(),
            count => format!("{count} declarations"),
        };
        let (keys_max, bytes) = (keys.keys_max, keys.value_bytes_max);
        format!("at most {keys_max}, {made}; {rules}; values of at most {bytes} bytes")
    }

    pub(super) fn sources_sentence(&self) -> String {
        let mut sources = Vec::new();
        if let Some(address) = self.line.tcp_listen {
            sources.push(format!("line protocol on {address}"));
        }
        if let Some(path) = &self.line.unix_socket {
            sources.push(format!("line protocol on {}", path.display()));
        }
        if let Some(mqtt) = &self.mqtt {
            let version = match mqtt.version {
                MqttVersion::V3_1_1 => "3.1.1",
                MqttVersion::V5 => "5",
            };
            let filters: Vec<String> = mqtt.subscribe.iter().map(filter).collect();
            sources.push(format!(
                "MQTT {version}{} from {} as {}: {}",
                mqtt.tls.as_ref().map_or("", |_| " over TLS"),
                mqtt.address(),
                mqtt.client_id,
                filters.join(", ")
            ));
        }
        sources.extend(self.modbus.iter().map(modbus::sentence));
        if sources.is_empty() {
            return "none".to_owned();
        }
        sources.join("; ")
    }

    /// Returns the bytes of an existing image; 0 for a device, whose size is not needed here.
    fn existing_bytes(&self) -> Option<u64> {
        let metadata = std::fs::metadata(&self.store.image).ok()?;
        Some(if metadata.is_file() {
            metadata.len()
        } else {
            0
        })
    }

    /// Refuses a store that cannot be made, or that would be useless.
    fn refuse_store(&self) -> Result<(), CliError> {
        persistence::refuse_no_place(&self.store.image)?;
        self.refuse_no_room()
    }

    /// Refuses parts that cannot be together. A reload keeps some keys of the configuration before it, so two files
    /// that are right can make one that is not.
    ///
    /// # Errors
    /// The first conflict: its key, the reason and the remedy.
    pub fn refuse_conflicts(&self) -> Result<(), CliError> {
        match sections::conflicts(self).next() {
            Some(one) => Err(CliError::failure(one.key, one.wrong, one.remedy)),
            None => Ok(()),
        }
    }

    /// Refuses to make a store without room for the checkpoints of `keys_max` keys: the problem would show only when
    /// the store is full. An existing store is accepted with a warning.
    ///
    /// # Errors
    /// The image does not exist, and `store.create_mebibytes` is too small for two checkpoints.
    pub fn refuse_no_room(&self) -> Result<(), CliError> {
        let store_bytes = self.store.create_mebibytes << 20;
        let fit = db::TableFit::of(self.checkpoint_bytes_max(), store_bytes);
        if fit < db::TableFit::Never || self.existing_bytes().is_some() {
            return Ok(());
        }
        Err(CliError::failure(
            self.store.image.display(),
            format!(
                "the store is to have {}, and {}: there is no room for one beside the one before",
                bytes_text(store_bytes),
                self.table_sentence()
            ),
            "raise store.create_mebibytes, or lower keys.keys_max or keys.value_bytes_max",
        ))
    }

    /// Returns the size of a full table, as a sentence.
    fn table_sentence(&self) -> String {
        let keys = &self.keys;
        // Shorter names take no less.
        let names = if keys.key_bytes_mean > db::KEY_BYTES_MEAN {
            format!(
                "names of {} bytes (keys.key_bytes_mean) and ",
                keys.key_bytes_mean
            )
        } else {
            String::new()
        };
        format!(
            "a checkpoint of {} keys (keys.keys_max) with {names}values of {} bytes (keys.value_bytes_max) takes up to \
             {}",
            keys.keys_max,
            keys.value_bytes_max,
            bytes_text(self.checkpoint_bytes_max())
        )
    }

    /// Returns the warning about a table that may become too large for its store.
    fn table_warning(&self, store_bytes: u64) -> Option<String> {
        // About 15/16 of the store hold files.
        let fit = db::TableFit::of(self.checkpoint_bytes_max(), store_bytes / 16 * 15);
        let what = match fit {
            db::TableFit::Sure => return None,
            db::TableFit::Perhaps => {
                "more than a quarter of it: near that many, one may find no room"
            }
            db::TableFit::Never => "more than half of it: near that many, none has room",
        };
        Some(format!(
            "{}, and the store has {}. That is {what}, and then the store fills up; take a larger store \
             (`keel flash grow`), or lower keys.keys_max or keys.value_bytes_max",
            self.table_sentence(),
            bytes_text(store_bytes)
        ))
    }

    /// Returns allowed settings that may surprise. `keel config check` prints them, and `keel run` logs them at the
    /// start.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let store_bytes = self
            .existing_bytes()
            .unwrap_or(self.store.create_mebibytes << 20);
        let history_bytes = self.store.history_mebibytes_max << 20;
        if store_bytes > 0 && history_bytes >= store_bytes {
            let what = match self.store.full_policy {
                db::FullPolicy::RejectNew => "new readings are refused",
                db::FullPolicy::DropOldest => "the oldest readings are deleted",
            };
            warnings.push(format!(
                "store.history_mebibytes_max is {} and the store has {} MiB: it never takes effect, and once the \
                 store is full {what}",
                self.store.history_mebibytes_max,
                store_bytes >> 20
            ));
        }
        if store_bytes > 0 {
            warnings.extend(self.table_warning(store_bytes));
        }
        if let Some(address) = self.line.tcp_listen.filter(|a| !a.ip().is_loopback()) {
            warnings.push(format!(
                "line.tcp_listen is {address}: every client that reaches it can write readings, there is no \
                 authentication"
            ));
        }
        if !self.keys.auto_create && self.key.is_empty() {
            warnings.push(
                "keys.auto_create is false and there is no [[key]]: every reading will be refused"
                    .to_owned(),
            );
        }
        let has_listener = self.line.tcp_listen.is_some() || self.line.unix_socket.is_some();
        if !has_listener && self.mqtt.is_none() && self.modbus.is_empty() {
            warnings.push("no source is configured: readings come by `keel put` only".to_owned());
        }
        warnings.extend(modbus::warning(self));
        warnings.extend(self.pattern_warnings());
        warnings.extend(self.secret_warnings());
        warnings.extend(tls_files::warnings(self));
        warnings.extend(self.http.as_ref().and_then(HttpConfig::warning));
        warnings.extend(self.write_warning());
        let saved_to = self
            .region
            .as_ref()
            .and_then(|region| region.checkpoint_image.as_deref());
        warnings.extend(saved_to.and_then(persistence::memory_warning));
        warnings.extend(self.job.iter().flat_map(JobConfig::warnings));
        warnings.extend(self.urgent.warnings());
        warnings.extend(sharing::warnings(self));
        warnings.extend(programs::warnings(&self.mount, &self.task));
        warnings
    }

    /// Returns the warning about agents that give up before their lines are on flash.
    fn write_warning(&self) -> Option<String> {
        let interval_ms = self.store.commit_interval_ms;
        let writes = self.http.as_ref().is_some_and(|http| http.write);
        (writes && interval_ms > AGENT_INTERVAL_MS_MAX).then(|| {
            format!(
                "http.write is true and store.commit_interval_ms is {interval_ms}: agents such as Telegraf give up \
                 after 5 s without an answer and send everything again; set their timeout above twice the interval"
            )
        })
    }

    /// Returns the warnings about patterns that look as if they held wildcards.
    fn pattern_warnings(&self) -> Vec<String> {
        let keys = self.key.iter().map(|key| ("key", &key.pattern));
        let alarms = self.urgent.alarms.iter();
        let alarms = alarms.map(|alarm| ("alarm", &alarm.pattern));
        keys.chain(alarms)
            .filter(|(_, pattern)| base::pattern::has_mixed_level(pattern))
            .map(|(section, pattern)| {
                format!(
                    "{section}.pattern is \"{pattern}\": + and # are wildcards only as whole levels, here they stand \
                     for themselves"
                )
            })
            .collect()
    }

    /// Returns the warnings about files that hold secrets.
    fn secret_warnings(&self) -> Vec<String> {
        let broker = self
            .mqtt
            .as_ref()
            .and_then(|mqtt| mqtt.password_file.as_ref());
        let mut files = vec![("mqtt.password_file", broker)];
        for upstream in &self.upstream {
            files.push(("upstream.password_file", upstream.password_file.as_ref()));
            let authorization = upstream.authorization_file.as_ref();
            files.push(("upstream.authorization_file", authorization));
        }
        for broker in &self.urgent.brokers {
            files.push(("broker.password_file", broker.password_file.as_ref()));
        }
        let named = files.into_iter();
        let named = named.filter_map(|(name, path)| path.map(|path| (name, path)));
        named
            .filter_map(|(name, path)| secret_warning(name, path))
            .collect()
    }
}

fn secret_warning(name: &str, path: &Path) -> Option<String> {
    let shown = path.display();
    match std::fs::metadata(path) {
        Err(error) => {
            let why = command::error::describe(&error);
            Some(format!("{name} {shown} cannot be read: {why}"))
        }
        Ok(metadata) if metadata.is_dir() => {
            Some(format!("{name} {shown} is a directory; name a file"))
        }
        Ok(metadata) if metadata.permissions().mode() & OTHERS != 0 => Some(format!(
            "{name} {shown} is open to every user of this machine; chmod 600 {shown}"
        )),
        Ok(_) => None,
    }
}

impl JobConfig {
    fn sentence(&self) -> String {
        let place = match (&self.hosts, self.is_board_only) {
            (Some(hosts), false) => format!("here or on boards of {}", hosts.display()),
            _ => "here".to_owned(),
        };
        format!(
            "{} every {} s: {} of {}, the last {} s, {place}, to {}",
            self.name,
            self.period_seconds,
            self.kernel.name(),
            self.key,
            self.history_seconds,
            self.out.display()
        )
    }

    /// Returns settings that may surprise.
    fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        for (key, path) in self.inputs() {
            if let Some(path) = path.as_ref().filter(|path| !path.is_file()) {
                warnings.push(format!(
                    "{key} {} of job {} is not there",
                    path.display(),
                    self.name
                ));
            }
        }
        if self.deadline_seconds > f64::from(self.period_seconds) {
            warnings.push(format!(
                "job {} may take longer than its period: starts that come meanwhile are skipped",
                self.name
            ));
        }
        warnings
    }
}

impl HttpConfig {
    fn sentence(&self) -> String {
        let who = match &self.token_file {
            Some(path) => format!("with a token of {}", path.display()),
            None if self.listen.ip().is_loopback() => {
                "for every program on this machine".to_owned()
            }
            None if self.asks_certificates() => "for clients with a certificate".to_owned(),
            None => "for every client that reaches it".to_owned(),
        };
        let page = if egress::http::has_page() {
            "live page, "
        } else {
            ""
        };
        let written = match (self.write, &self.token_file) {
            (false, _) => "",
            (true, None) => "; readings can be written",
            (true, Some(_)) => "; readings can be written with a token that has the right",
        };
        format!(
            "{page}values, history and metrics on {}://{}, {who}{written}",
            self.scheme(),
            self.listen
        )
    }

    fn warning(&self) -> Option<String> {
        let Some(path) = &self.token_file else {
            let is_open = !self.listen.ip().is_loopback() && !self.asks_certificates();
            return is_open.then(|| {
                format!(
                    "http.listen is {}: every client that reaches it can read everything (http.anonymous)",
                    self.listen
                )
            });
        };
        let tokens = match self.tokens() {
            Ok(tokens) => tokens,
            Err(error) => return Some(format!("http.token_file {error}")),
        };
        let shown = path.display();
        if self.write && !tokens.any_writes() {
            return Some(format!(
                "http.write is true, and no token of {shown} has the right to write: add `write` behind one"
            ));
        }
        if !self.write && tokens.any_writes() {
            return Some(format!(
                "a token of {shown} has the right to write, and http.write is false: nothing can be written"
            ));
        }
        match std::fs::metadata(path) {
            Ok(metadata) if metadata.permissions().mode() & OTHERS != 0 => Some(format!(
                "http.token_file {shown} is open to every user of this machine; chmod 600 {shown}"
            )),
            _ if !self.listen.ip().is_loopback() && self.tls.is_none() => Some(format!(
                "http.listen is {}: tokens and values cross that network unencrypted; give certificate_file and \
                 key_file",
                self.listen
            )),
            _ => None,
        }
    }
}

impl RegionConfig {
    fn sentence(&self) -> String {
        let size = match self.file.try_exists() {
            Ok(true) => String::new(),
            _ => {
                let folder = match self.file.parent() {
                    Some(folder) if folder != Path::new("") && !folder.is_dir() => {
                        " with its folder"
                    }
                    _ => "",
                };
                let size = self.create_mebibytes;
                format!(" of {size} MiB, made at the next start{folder}")
            }
        };
        let saved = match &self.checkpoint_image {
            None => "never saved: a power cut takes what is in it".to_owned(),
            Some(image) => format!(
                "saved to {} every {} s",
                image.display(),
                self.checkpoint_interval_seconds
            ),
        };
        let (file, table) = (self.file.display(), &self.table);
        format!("{file}{size}; values in {table}; {saved}")
    }
}

fn filter(subscribe: &SubscribeConfig) -> String {
    format!("{} (QoS {})", subscribe.filter, subscribe.qos)
}
