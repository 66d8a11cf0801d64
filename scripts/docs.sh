#!/usr/bin/env bash
# Builds the documentation site into target/site/html with mdbook: the one in PATH, else one that is built once, into
# target/tools. Fails if a page of docs/SUMMARY.md is not there, or if a link of the built site leads to no file of it.
#   scripts/docs.sh [OPTIONS OF mdbook build]      such as --open
set -euo pipefail
cd "$(dirname "$0")/.."
mdbook_version=0.5.4
target=${CARGO_TARGET_DIR:-target}
site=$target/site
fail() {
    printf 'docs: %s\n' "$*" >&2
    exit 1
}

mdbook=$(command -v mdbook || printf '%s' "$target/tools/bin/mdbook")
if [ ! -x "$mdbook" ]; then
    printf 'docs: building mdbook %s (cargo install, some minutes)\n' "$mdbook_version"
    # Without optimisation: it builds the site in seconds as it is.
    CARGO_PROFILE_DEV_DEBUG=false cargo install --quiet --locked --debug --no-default-features --features search \
        --root "$target/tools" "mdbook@$mdbook_version" ||
        fail "mdbook could not be built; install one into PATH: cargo install --locked mdbook"
fi
cargo xtask site "$site"
rm -rf "$site/html"
"$mdbook" build "$@" "$site"

# Each page that xtask has put into the folder is a page of the finished site.
pages=0
while IFS= read -r page; do
    [ -s "$site/html/${page%.md}.html" ] || fail "$page of docs/SUMMARY.md has no page in $site/html"
    pages=$((pages + 1))
done < <(sed -n 's/.*](\(.*\.md\))$/\1/p' "$site/src/SUMMARY.md")
[ "$pages" -gt 0 ] || fail "docs/SUMMARY.md lists no page"

# links FILE: the links of one page that stay in the site, without anchors.
links() {
    { grep -oE '<(a|img|link|script) [^>]*(href|src)="[^"]*"' "$1" || true; } |
        sed -E 's/.*(href|src)="([^"]*)"$/\2/; s/[#?].*//' | sort -u | { grep -vE '^$|^[a-z]+:|^//' || true; }
}
broken=0
# All pages in one are printed from, and the page for what is missing may be shown at any address.
while IFS= read -r page; do
    while IFS= read -r link; do
        [ -e "$(dirname "$page")/$link" ] && continue
        printf 'docs: %s: leads to %s, which is not in the site\n' "${page#"$site/html/"}" "$link" >&2
        broken=$((broken + 1))
    done < <(links "$page")
done < <(find "$site/html" -name '*.html' ! -name print.html ! -name 404.html | sort)
[ "$broken" -eq 0 ] || fail "$broken links lead to nothing"
printf 'docs: %s/html/index.html, %d pages\n' "$site" "$pages"
