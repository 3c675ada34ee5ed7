"""The version of this release; the built distribution takes it from here."""

VERSION = "0.2.0"
