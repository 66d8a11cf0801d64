//! The five programs of the paper, each with its arguments and a tree that contains all it needs.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::ValueEnum;

use super::tree::Tree;

/// A program of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Program {
    /// Python, which loads modules.
    #[value(name = "python3")]
    Python,
    /// Perl, which loads one.
    Perl,
    /// The C compiler, which compiles a small file.
    Gcc,
    /// A Java virtual machine, which runs a small class.
    Java,
    /// OpenSSL, which makes random bytes.
    Openssl,
}

/// A program with its tree.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub(crate) program: Program,
    pub(crate) name: &'static str,
    /// The folder that is its root when it runs.
    pub(crate) tree: PathBuf,
    /// The path of the executable from that root.
    pub(crate) path: PathBuf,
    /// Its usual arguments.
    pub(crate) arguments: Vec<String>,
    /// Other sets of arguments.
    pub(crate) varied: Vec<Vec<String>>,
    /// The file that it writes in addition to its output.
    pub(crate) writes: Option<&'static str>,
}

/// The output of a program when nothing is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// These bytes.
    Bytes(Vec<u8>),
    /// This number of random bytes, as hexadecimal digits.
    Random(usize),
}

impl Expected {
    /// Returns an error if the output differs.
    ///
    /// # Errors
    /// One line with the first of the bytes.
    pub(crate) fn check(&self, output: &[u8]) -> Result<(), String> {
        let is_right = match self {
            Self::Bytes(bytes) => output == bytes,
            Self::Random(count) => {
                let digits = output.strip_suffix(b"\n").unwrap_or(output);
                digits.len() == count * 2 && digits.iter().all(u8::is_ascii_hexdigit)
            }
        };
        if is_right {
            return Ok(());
        }
        let start = String::from_utf8_lossy(&output[..output.len().min(80)]).into_owned();
        let bytes = output.len();
        Err(format!("it wrote something else: {bytes} B, {start:?}"))
    }
}

/// Number of random bytes that OpenSSL generates.
const RANDOM_BYTES: usize = 16;

const C_SOURCE: &str = "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n\n\
    int main(int argc, char **argv)\n{\n    char *text = strdup(argc > 1 ? argv[1] : \"keel\");\n    \
    printf(\"%s %zu\\n\", text, strlen(text));\n    free(text);\n    return 0;\n}\n";

const C_SOURCE_OTHER: &str = "#include <errno.h>\n#include <math.h>\n#include <signal.h>\n#include <stdio.h>\n\n\
    double area(double radius)\n{\n    return radius < 0 ? -EINVAL : M_PI * pow(radius, 2);\n}\n\n\
    void wait_for(int signal_number)\n{\n    signal(signal_number, SIG_IGN);\n    puts(\"ignored\");\n}\n";

const JAVA_SOURCE: &str = "public class Hello {\n    public static void main(String[] words) {\n        \
    System.out.println(\"Hello \" + words.length);\n        if (words.length > 1) {\n            \
    System.out.println(String.format(\"%s of %d\", words[0], words.length));\n        }\n        \
    if (words.length > 2) {\n            System.out.println(java.util.Arrays.stream(words)\n                \
    .sorted().toList());\n        \
    }\n    }\n}\n";

const JAVA_FLAGS: [&str; 3] = ["-Xshare:auto", "-cp", "/task"];

impl Program {
    /// All programs.
    pub(crate) const ALL: [Self; 5] = [
        Self::Python,
        Self::Perl,
        Self::Gcc,
        Self::Java,
        Self::Openssl,
    ];

    /// Returns its name in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Python => "python3",
            Self::Perl => "perl",
            Self::Gcc => "gcc",
            Self::Java => "java",
            Self::Openssl => "openssl",
        }
    }

    /// Returns its path on this machine. The user's search path is not used: it may lead to a wrapper script.
    fn find(self) -> Result<PathBuf, String> {
        let name = self.name();
        let candidates =
            ["/usr/bin", "/bin", "/usr/local/bin"].map(|dir| Path::new(dir).join(name));
        candidates
            .into_iter()
            .find(|path| path.exists())
            .ok_or_else(|| format!("{name} is not installed"))
    }

    /// Creates the tree of the program in a new folder.
    ///
    /// # Errors
    /// One line that names what is not installed, or what failed.
    pub(crate) fn build(self, folder: &Path) -> Result<Task, String> {
        let path = self.find()?;
        let mut tree = Tree::create(folder)?;
        tree.add(&path)?;
        match self {
            Self::Python => python(&path, &mut tree)?,
            Self::Perl => perl(&path, &mut tree)?,
            Self::Gcc => gcc(&path, &mut tree)?,
            Self::Java => java(&path, &mut tree)?,
            Self::Openssl => openssl(&path, &mut tree)?,
        }
        tree.add_libraries()?;
        let (arguments, varied) = self.arguments();
        Ok(Task {
            program: self,
            name: self.name(),
            tree: tree.root().to_owned(),
            path,
            arguments: words(&arguments),
            varied: varied.iter().map(|arguments| words(arguments)).collect(),
            writes: (self == Self::Gcc).then_some("/tmp/a.o"),
        })
    }

    /// Returns the usual arguments, and other sets of arguments.
    fn arguments(self) -> (Vec<&'static str>, Vec<Vec<&'static str>>) {
        match self {
            Self::Python => (
                vec![
                    "-c",
                    "import json, ssl; print(json.dumps(ssl.OPENSSL_VERSION))",
                ],
                vec![
                    vec!["-c", "import json; print(json.dumps([1, 2.5, None]))"],
                    vec!["-c", "import ssl, argparse; print(ssl.HAS_TLSv1_3)"],
                    vec!["-c", "import decimal; print(decimal.Decimal(1) / 7)"],
                ],
            ),
            Self::Perl => (
                vec!["-MPOSIX", "-e", "print floor(3.7)"],
                vec![
                    vec!["-e", "print 3 * 4"],
                    vec!["-MData::Dumper", "-e", "print Dumper([1, {a => 2}])"],
                    vec![
                        "-MPOSIX",
                        "-MList::Util=sum",
                        "-e",
                        "print sum(map { ceil($_) } 1.5, 2.5)",
                    ],
                ],
            ),
            Self::Gcc => (
                vec!["-c", "/task/a.c", "-o", "/tmp/a.o"],
                vec![
                    vec!["-O2", "-c", "/task/a.c", "-o", "/tmp/a.o"],
                    vec!["-c", "/task/b.c", "-o", "/tmp/a.o"],
                    vec!["-g", "-Wall", "-c", "/task/b.c", "-o", "/tmp/a.o"],
                ],
            ),
            Self::Java => {
                let with = |words: &[&'static str]| [&JAVA_FLAGS[..], &["Hello"], words].concat();
                (
                    with(&[]),
                    vec![
                        with(&["one"]),
                        with(&["one", "two"]),
                        with(&["c", "a", "b"]),
                    ],
                )
            }
            Self::Openssl => (
                vec!["rand", "-hex", "16"],
                vec![
                    vec!["version"],
                    vec!["dgst", "-sha256", "/task/a.txt"],
                    vec![
                        "enc",
                        "-aes-256-cbc",
                        "-pbkdf2",
                        "-k",
                        "keel",
                        "-S",
                        "0011223344556677",
                        "-in",
                        "/task/a.txt",
                    ],
                ],
            ),
        }
    }
}

impl Task {
    /// Returns the expected random output if its output differs each time.
    pub(crate) fn says_random(&self, arguments: &[String]) -> Option<Expected> {
        let is_random = self.program == Program::Openssl
            && arguments.first().is_some_and(|word| word == "rand");
        is_random.then_some(Expected::Random(RANDOM_BYTES))
    }
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// Returns the output of a program about itself, as one line.
fn ask(program: &Path, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{}: {error}", program.display()))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        let line = text.lines().next().unwrap_or("failed");
        return Err(format!("{}: {line}", program.display()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn python(path: &Path, tree: &mut Tree) -> Result<(), String> {
    let library = ask(
        path,
        &[
            "-c",
            "import sysconfig; print(sysconfig.get_path('stdlib'))",
        ],
    )?;
    let is_left_out = |path: &Path| {
        let name = path.file_name().unwrap_or_default();
        [
            "test",
            "tests",
            "idlelib",
            "turtledemo",
            "dist-packages",
            "site-packages",
        ]
        .iter()
        .any(|left_out| name == *left_out)
    };
    tree.add_all(Path::new(&library), &is_left_out)
}

fn perl(path: &Path, tree: &mut Tree) -> Result<(), String> {
    let folders = ask(path, &["-e", "print join qq(\\n), @INC"])?;
    for folder in folders.lines().map(Path::new) {
        let is_own = folder.starts_with("/usr") && !folder.starts_with("/usr/local");
        // Folders of Perl packages are left out: programs that only need Perl do not use them.
        if is_own && folder.is_dir() && !folder.ends_with("perl5") {
            tree.add_all(folder, &|_| false)?;
        }
    }
    Ok(())
}

fn gcc(path: &Path, tree: &mut Tree) -> Result<(), String> {
    for name in ["cc1", "collect2", "as", "ld"] {
        let found = ask(path, &[&format!("-print-prog-name={name}")])?;
        let candidates = [PathBuf::from(&found), Path::new("/usr/bin").join(&found)];
        let Some(program) = candidates
            .iter()
            .find(|path| path.is_absolute() && path.exists())
        else {
            return Err(format!("gcc has no {name}"));
        };
        tree.add(program)?;
    }
    tree.add_all(
        Path::new(&ask(path, &["-print-file-name=include"])?),
        &|_| false,
    )?;
    // Only the headers of the C library and of the kernel; others belong to other packages.
    let include = Path::new("/usr/include");
    let multi = include.join(ask(path, &["-print-multiarch"]).unwrap_or_default());
    for folder in [include, &multi] {
        let entries =
            std::fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        for entry in entries.flatten().map(|entry| entry.path()) {
            if entry.is_file() {
                tree.add(&entry)?;
            }
        }
        for name in ["bits", "sys", "gnu", "asm", "asm-generic", "linux"] {
            let part = folder.join(name);
            if part.is_dir() {
                tree.add_all(&part, &|_| false)?;
            }
        }
    }
    tree.write("/task/a.c", C_SOURCE.as_bytes())?;
    tree.write("/task/b.c", C_SOURCE_OTHER.as_bytes())
}

fn java(path: &Path, tree: &mut Tree) -> Result<(), String> {
    let real =
        std::fs::canonicalize(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let home = real
        .parent()
        .and_then(Path::parent)
        .ok_or("java lies nowhere")?;
    let is_left_out = |path: &Path| {
        let name = path.file_name().unwrap_or_default();
        [
            "jmods", "man", "include", "docs", "legal", "demo", "src.zip", "ct.sym",
        ]
        .iter()
        .any(|left_out| name == *left_out)
    };
    tree.add_all(home, &is_left_out)?;
    tree.write("/task/Hello.java", JAVA_SOURCE.as_bytes())?;
    let work = tree.root().join("task");
    let compiler = home.join("bin/javac");
    let text = |path: &Path| path.display().to_string();
    ask(
        &compiler,
        &["-d", &text(&work), &text(&work.join("Hello.java"))],
    )
    .map(drop)
    .map_err(|error| format!("java without its compiler: {error}"))
}

fn openssl(path: &Path, tree: &mut Tree) -> Result<(), String> {
    let folder = ask(path, &["version", "-d"])?;
    let folder = folder.split('"').nth(1).unwrap_or("/usr/lib/ssl");
    tree.add_if_there(&Path::new(folder).join("openssl.cnf"))?;
    let modules = ask(path, &["version", "-m"]).unwrap_or_default();
    if let Some(modules) = modules.split('"').nth(1).map(Path::new)
        && modules.is_dir()
    {
        tree.add_all(modules, &|_| false)?;
    }
    tree.write(
        "/task/a.txt",
        "A text of some lines.\n".repeat(400).as_bytes(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_of_a_program_is_compared_with_the_expected() {
        let expected = Expected::Bytes(b"3".to_vec());
        assert_eq!(expected.check(b"3"), Ok(()));
        assert!(expected.check(b"").unwrap_err().contains("0 B"));
        let random = Expected::Random(2);
        assert_eq!(random.check(b"01ef\n"), Ok(()));
        assert!(random.check(b"01eg\n").is_err() && random.check(b"01ef00").is_err());
    }

    #[test]
    fn every_program_has_other_arguments_that_differ() {
        for program in Program::ALL {
            let (usual, varied) = program.arguments();
            assert!(
                varied.len() >= 3 && !varied.contains(&usual),
                "{}",
                program.name()
            );
        }
    }
}
