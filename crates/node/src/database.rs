//! The database of a node, and where its sources put readings.

use super::changes::Counted;
use super::image::Device;
use super::settings;
use command::error::CliError;
use db::Database;
use flash::Store;
use ingest::intake::NodeDestination;
use std::path::Path;

/// The database of a node.
pub(crate) type Db = Database<Store<Device>>;

/// Where sources put readings.
pub(crate) type Target = Counted<NodeDestination<Store<Device>>>;

/// Returns the failure to open or close the database in this image.
pub(crate) fn database_error(image: &Path, error: &db::Error) -> CliError {
    let (wrong, remedy) = settings::told(error);
    let remedy = match error {
        db::Error::Version { .. } => "use the version of keel that wrote it",
        _ if remedy.is_empty() => "check it with `keel flash check`",
        _ => &remedy,
    };
    CliError::failure(image.display(), wrong, remedy)
}
