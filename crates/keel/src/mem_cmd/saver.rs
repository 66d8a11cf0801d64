//! Checkpoints while a program runs with a region.

use super::checkpoint::saved_text;
use crate::error::CliError;
use mem::Attachment;
use mem::checkpoint::SaveReport;
use node::regions;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long to wait for the image: another `keel mem run` closes it after each checkpoint.
const PATIENCE: Duration = Duration::from_secs(2);

/// Poll interval while the image is in use.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// What is saved, where, and how often.
#[derive(Clone)]
pub(super) struct Plan {
    pub(super) region: PathBuf,
    pub(super) image: PathBuf,
    pub(super) name: String,
    pub(super) every_s: u32,
}

impl Plan {
    /// Checks the image before there is data to lose: a mistyped place is an error. An image that another program has
    /// open is no error, because it may be open only for one checkpoint. In that case a warning is returned.
    pub(super) fn look(&self) -> Result<Option<String>, CliError> {
        match regions::newest(&self.region, &self.image, &self.name) {
            Ok(_) => Ok(None),
            Err(error) if error.is_busy() => Ok(Some(self.put_off(error))),
            Err(error) => Err(error),
        }
    }

    fn put_off(&self, error: CliError) -> String {
        let text = format!(
            "the program runs without checkpoints until it is free, which is tried every {} s",
            self.every_s
        );
        error.with_remedy(text).to_string()
    }

    fn missed(&self, error: CliError) -> String {
        let text = format!(
            "what is in the region is there still: save it with `keel mem checkpoint {} {}`",
            self.region.display(),
            self.image.display()
        );
        error.with_remedy(text).to_string()
    }

    /// Takes a checkpoint once no other process has the image open.
    fn save(&self, attachment: &Attachment) -> Result<SaveReport, CliError> {
        let begun = Instant::now();
        loop {
            let wanted = (self.name.as_str(), &[][..]);
            match regions::save(attachment, &self.image, wanted, false, &mut |_, _| {}) {
                Err(error) if error.is_busy() && begun.elapsed() < PATIENCE => {
                    std::thread::sleep(LOOK_INTERVAL);
                }
                other => return other,
            }
        }
    }
}

/// The thread that takes checkpoints: periodically, on request, and once more when this is dropped.
pub(super) struct Saver {
    sender: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Saver {
    /// Starts the thread; `told` is the warning about the image that was already printed.
    pub(super) fn start(
        attachment: &Arc<Attachment>,
        plan: Plan,
        mut told: String,
    ) -> Result<Self, CliError> {
        let (sender, receiver) = sync_channel(1);
        let attachment = Arc::clone(attachment);
        let interval = Duration::from_secs(plan.every_s.into());
        let thread = std::thread::Builder::new()
            .name("checkpoints".to_owned())
            .spawn(move || {
                loop {
                    let next = receiver.recv_timeout(interval);
                    let saved = plan.save(&attachment);
                    let is_over = matches!(next, Err(RecvTimeoutError::Disconnected));
                    let is_saved = saved.is_ok();
                    let said = match saved {
                        Ok(report) => saved_text(&plan.region, &plan.image, &report),
                        Err(error) if is_over => plan.missed(error),
                        Err(error) if error.is_busy() => plan.put_off(error),
                        Err(error) => error.to_string(),
                    };
                    // Report each failure once, and the last result in any case.
                    if is_over || (!is_saved && said != told) {
                        eprintln!("keel: {said}");
                    }
                    told = if is_saved { String::new() } else { said };
                    if is_over {
                        attachment.thread_ends();
                        return;
                    }
                }
            })
            .map_err(|error| CliError::io("checkpoints", &error))?;
        Ok(Self {
            sender: Some(sender),
            thread: Some(thread),
        })
    }

    pub(super) fn save_now(&self) {
        if let Some(sender) = &self.sender {
            // A request that is already pending is sufficient.
            sender.try_send(()).ok();
        }
    }
}

impl Drop for Saver {
    fn drop(&mut self) {
        drop(self.sender.take());
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}
