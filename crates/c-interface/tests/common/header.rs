//! Tests of a committed header: it is what cbindgen generates from the source, and compiles as older C and as C++. It
//! declares every function that the library exports, and no other.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder of the library that is tested.
const HERE: &str = env!("CARGO_MANIFEST_DIR");

/// A committed header.
pub struct Header {
    /// Its name in `include`.
    pub name: &'static str,
    /// The files below `src` that it is generated from, in its order.
    pub files: &'static [&'static str],
    /// What the name of each function begins with.
    pub prefix: &'static str,
    /// The file of the shared library.
    pub library: &'static str,
    /// The environment variable that makes [`check_source`](Self::check_source) write the header again.
    pub write: &'static str,
    /// A call of one of its functions.
    pub call: &'static str,
}

impl Header {
    fn generated(&self) -> String {
        let folder = Path::new(HERE);
        let config = cbindgen::Config::from_file(folder.join("cbindgen.toml")).unwrap();
        let mut builder = cbindgen::Builder::new().with_config(config);
        for file in self.files {
            builder = builder.with_src(folder.join("src").join(file));
        }
        let mut text = Vec::new();
        builder.generate().unwrap().write(&mut text);
        String::from_utf8(text).unwrap()
    }

    /// Returns the functions of the source.
    fn functions(&self) -> Vec<String> {
        let begin = format!("extern \"C\" fn {}", self.prefix);
        let mut names = Vec::new();
        for entry in std::fs::read_dir(Path::new(HERE).join("src/interface")).unwrap() {
            let source = std::fs::read_to_string(entry.unwrap().path()).unwrap();
            let found = source.split(begin.as_str()).skip(1);
            let found: Vec<_> = found
                .filter_map(|rest| Some(format!("{}{}", self.prefix, rest.split_once('(')?.0)))
                .collect();
            assert_eq!(
                source.matches("#[unsafe(no_mangle)]").count(),
                found.len(),
                "each function has a name that C can find"
            );
            names.extend(found);
        }
        assert!(names.len() > 20, "{}", names.len());
        names
    }

    /// Checks that the committed header is generated from the source.
    pub fn check_source(&self) {
        let path = Path::new(HERE).join("include").join(self.name);
        let text = self.generated();
        if std::env::var_os(self.write).is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        let committed = std::fs::read_to_string(&path).unwrap();
        let differs = |(line, (first, second)): (usize, (&str, &str))| {
            (first != second).then(|| format!("line {}: {first:?}, generated {second:?}", line + 1))
        };
        let mut lines = committed.lines().zip(text.lines()).enumerate();
        assert_eq!(lines.find_map(differs), None);
        assert_eq!(committed.len(), text.len());
    }

    /// Checks that the header declares every exported function.
    pub fn check_functions(&self) {
        let header = self.generated();
        for name in self.functions() {
            assert!(header.contains(&format!("{name}(")), "{name}");
        }
    }

    /// Checks that the library, which the build places beside the test, exports only these functions.
    pub fn check_exports(&self) {
        let test = std::env::current_exe().unwrap();
        let output = Command::new("nm")
            .args(["--dynamic", "--defined-only", "--format=posix"])
            .arg(test.parent().unwrap().join(self.library))
            .output();
        let Ok(output) = output else {
            println!("skipped: nm is not installed");
            return;
        };
        let text = String::from_utf8(output.stdout).unwrap();
        let mut names: Vec<&str> = text
            .lines()
            .filter_map(|line| line.split(' ').next())
            .collect();
        names.sort_unstable();
        let mut functions = self.functions();
        functions.sort_unstable();
        assert_eq!(names, functions);
    }

    /// Checks that the header compiles as C99 and as C++11.
    pub fn check_compilers(&self) {
        let folder = self.scratch();
        std::fs::create_dir(&folder).unwrap();
        for (compiler, standard, ending) in [("cc", "-std=c99", "c"), ("c++", "-std=c++11", "cc")] {
            let source = folder.join("program").with_extension(ending);
            let text = format!(
                "#include \"{}\"\nint main(void) {{ return {} == 0; }}\n",
                self.name, self.call
            );
            std::fs::write(&source, text).unwrap();
            let built = Command::new(compiler)
                .args(["-Wall", "-Wextra", "-Werror", "-pedantic", standard])
                .arg("-c")
                .arg("-o")
                .arg(folder.join("program.o"))
                .arg("-I")
                .arg(Path::new(HERE).join("include"))
                .arg(&source)
                .output();
            match built {
                Ok(built) => {
                    let text = String::from_utf8_lossy(&built.stderr).into_owned();
                    assert!(built.status.success(), "{compiler}: {text}");
                }
                Err(error) => println!("skipped: no {compiler}: {error}"),
            }
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }

    fn scratch(&self) -> PathBuf {
        std::env::temp_dir().join(format!("{}-{}", self.name, std::process::id()))
    }
}
